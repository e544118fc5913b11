"""Checkpoints and tensors of PyTorch in a store.

`StoreWriter` and `StoreReader` are for `torch.distributed.checkpoint`:

>>> import torch.distributed.checkpoint as dcp
>>> from outrigger.torch import StoreReader, StoreWriter
>>> dcp.save({"model": model, "optimizer": optimizer}, storage_writer=StoreWriter(store, "run/step-100"))
>>> dcp.load({"model": model, "optimizer": optimizer}, storage_reader=StoreReader(store, "run/step-100"))

`save` and `load` are for safetensors files:

>>> save(model.state_dict(), store, "model.safetensors")
>>> load(store, "model.safetensors", ["lm_head.weight"], device="cuda")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter

from . import safetensors
from .store import Store, When, opened

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

    from .values import Moved

__all__ = ["StoreReader", "StoreWriter", "load", "save"]

#: Bytes that a reader of checkpoints takes at once. Larger tensors are read directly.
_READ = 1 << 16


def save(
    tensors: Mapping[str, torch.Tensor],
    store: Store | str | os.PathLike[str],
    path: str,
    metadata: Mapping[str, str] | None = None,
) -> Moved:
    """Save tensors as one safetensors file, which appears once it is complete.

    One tensor at a time is copied to the processor's memory. Tensors that share memory are written
    each for itself; the store keeps their bytes once.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The tensors, by name, such as ``model.state_dict()``. They may be on any device.
    store : Store or path
        An open store, or where it is.
    path : str
        Path in the store.
    metadata : mapping of str to str, optional
        Text to keep with them.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise TypeError(f"{name!r} is not a dense tensor, which is all that safetensors can have")
    kinds = {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}

    def content(name: str) -> Any:
        return _bytes_of(tensors[name].detach().resolve_conj().resolve_neg().to("cpu").contiguous())

    return safetensors.write(opened(store), path, kinds, sizes, content, metadata)


def load(
    store: Store | str | os.PathLike[str],
    path: str,
    names: Iterable[str] | None = None,
    device: torch.device | str = "cpu",
    *,
    at: When | None = None,
) -> dict[str, torch.Tensor]:
    """Load tensors of a safetensors file.

    Only the tensors that are asked for are read, straight into their memory.

    Parameters
    ----------
    store : Store or path
        An open store, or where it is.
    path : str
        Path in the store.
    names : iterable of str, optional
        The tensors to load. Default: all.
    device : torch.device or str
        Where the tensors shall be.
    at : str or datetime, optional
        Load them from a snapshot, as `Store.stat` has it.

    Raises
    ------
    KeyError
        If the file has no tensor of such a name.
    """

    def empty(tensor: safetensors.Tensor) -> tuple[torch.Tensor, Any]:
        made = torch.empty(tensor.shape, dtype=getattr(torch, tensor.type))
        return made, _bytes_of(made)

    return {name: made.to(device) for name, made in safetensors.read(opened(store), path, names, at, empty)}


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the memory of a contiguous tensor as an array of bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


class StoreWriter(FileSystemWriter):
    """Writes checkpoints of `torch.distributed.checkpoint` to a store.

    A checkpoint appears when all of it is stored, and not at all if the save fails. It has the
    files of `torch.distributed.checkpoint.FileSystemWriter`, so that a mount or ``outrigger get``
    makes it readable for `FileSystemReader`.

    Parameters
    ----------
    store : Store or path
        An open store, or where it is. All ranks must reach it.
    path : str
        Where the checkpoint goes. ``dcp.save(..., checkpoint_id=path)`` names another one, so that
        one writer serves many saves.
    tag : str or sequence of str
        Take a snapshot with these tags when a checkpoint is complete.
    overwrite : bool
        Replace a checkpoint at `path`. It stays until the new one is complete.
    threads : int
        Files that each rank writes at a time.
    **options
        Further options of `FileSystemWriter`, such as ``single_file_per_rank``.

    Notes
    -----
    The files are written into the hidden directory ``.NAME.saving`` beside the checkpoint, which
    is renamed at the end. The next save removes what a failed one has left there. Two jobs must not
    save to the same path at the same time. Saves with ``use_collectives=False`` cannot be whole,
    and are refused.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        path: str | os.PathLike[str] = "",
        *,
        tag: str | Sequence[str] = (),
        overwrite: bool = False,
        threads: int = 1,
        **options: Any,
    ) -> None:
        # The store makes every file durable.
        super().__init__(path, sync_files=False, thread_count=threads, **options)
        self.tags = [tag] if isinstance(tag, str) else list(tag)
        self.fs: Any = _Partial(opened(store))
        self.path: Any = self.fs.init_path(path)
        self.overwrite = overwrite

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not self.path:
            raise ValueError("name the checkpoint: StoreWriter(store, path), or checkpoint_id=path")
        if not kwargs.get("use_collectives", True):
            raise ValueError("a checkpoint is only whole if the ranks agree: leave use_collectives as it is")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # Only the coordinator is here, and no rank writes before it is through.
        self.fs.begin(self.path, self.overwrite)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        # A thread of the base class that fails says so to nobody.
        missing = len(plan.items) - len(written.value())
        if missing:
            raise OSError(f"{missing} of {len(plan.items)} parts of the checkpoint could not be stored")
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        self.fs.publish(self.path)
        if self.tags:
            self.fs.store.snapshot(tags=self.tags)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _Files.validate_checkpoint_id(checkpoint_id)


class StoreReader(FileSystemReader):
    """Reads checkpoints of `torch.distributed.checkpoint` from a store.

    It also reads those that `FileSystemWriter` wrote, for example through a mount.

    Parameters
    ----------
    store : Store or path
        An open store, or where it is. All ranks must reach it.
    path : str
        Where the checkpoint is. ``dcp.load(..., checkpoint_id=path)`` names another one.
    at : str or datetime, optional
        Read it from a snapshot, by its name, tag or time, as `Store.stat` has it.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        path: str | os.PathLike[str] = "",
        *,
        at: When | None = None,
    ) -> None:
        super().__init__(path)
        self.fs: Any = _Files(opened(store), at)
        self.path: Any = self.fs.init_path(path)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if not self.path:
            raise ValueError("name the checkpoint: StoreReader(store, path), or checkpoint_id=path")
        earlier = _beside(self.path, "earlier")
        if not self.fs.exists(self.path) and self.fs.exists(earlier):
            # A save was interrupted between its last two steps.
            self.path = earlier
        return super().read_metadata(*args, **kwargs)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _Files.validate_checkpoint_id(checkpoint_id)


class _Files(FileSystemBase):
    """A store as `FileSystemReader` wants it."""

    def __init__(self, store: Store, at: When | None = None) -> None:
        self.store, self.at = store, at

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if "w" in mode:
            stream = self.store.open(path, mode)
        else:
            stream = self.store.open(path, mode, at=self.at, buffering=_READ)
        with stream:
            yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path).strip("/")

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.store.rename(path, new_path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self.store.mkdir(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return bool(os.fspath(checkpoint_id))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self.store.exists(path, at=self.at)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self.store.remove(path)

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return [entry.path for entry in self.store.ls(path, at=self.at)]


class _Partial(_Files):
    """A store in which a checkpoint's files are in a directory beside it until it is complete."""

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return super().concat_path(_beside(os.fspath(path), "saving"), suffix)

    def begin(self, path: str, overwrite: bool) -> None:
        """Remove what failed saves have left."""
        earlier, saving = _beside(path, "earlier"), _beside(path, "saving")
        if self.exists(earlier) and not self.exists(path):
            self.rename(earlier, path)
        if not overwrite and self.exists(path):
            raise FileExistsError(17, f"{path} exists already; set overwrite=True to replace it")
        self._clear(earlier)
        self._clear(saving)
        self.mkdir(saving)

    def publish(self, path: str) -> None:
        """Put the directory in the place of the checkpoint."""
        earlier = _beside(path, "earlier")
        if self.exists(path):
            self.rename(path, earlier)
        self.rename(_beside(path, "saving"), path)
        self._clear(earlier)

    def _clear(self, path: str) -> None:
        if self.exists(path):
            self.store.remove(path, recursive=True)


def _beside(path: str, role: str) -> str:
    above, slash, name = path.rpartition("/")
    return f"{above}{slash}.{name}.{role}"
