#!/usr/bin/env python3
"""Compiles the CUDA kernels to the committed PTX, or checks that the committed PTX is current.

    scripts/kernels.py build     crates/offload/kernels/*.cu to crates/offload/kernels/ptx/*.ptx
    scripts/kernels.py check     exit status 1 if the committed PTX differs, 77 if NVRTC is not installed

NVRTC, the compiler, is a shared library; no GPU and no driver is needed:

    python3 -m venv /tmp/nvrtc && /tmp/nvrtc/bin/pip install nvidia-cuda-nvrtc-cu12==12.0.140
    /tmp/nvrtc/bin/python scripts/kernels.py build

Why this version: a driver compiles PTX for its GPU if it knows the PTX's version, which is that of the compiler. CUDA 12.0
makes PTX 8.0, which all drivers since 525 know. Why compute_70: it is the oldest architecture with independent thread
scheduling, and PTX for it runs on every later one. The kernels need nothing newer.

OUTRIGGER_NVRTC names a library to use instead of the one that the running Python has installed.
"""

import ctypes
import glob
import hashlib
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = os.path.join(ROOT, "crates", "offload", "kernels")
OPTIONS = ["--gpu-architecture=compute_70", "--std=c++17"]
VERSION = (12, 0)


def sources():
    """Maps the name of every kernel source and header to its bytes, in order."""
    names = sorted(name for name in os.listdir(KERNELS) if name.endswith((".cu", ".cuh")))
    return {name: open(os.path.join(KERNELS, name), "rb").read() for name in names}


def fingerprint(files):
    """A digest that shows whether PTX was made from these files. tests/it/kernels.rs computes
    the same without NVRTC."""
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(b"%s %d\n" % (name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def library():
    """NVRTC, or None."""
    named = os.environ.get("OUTRIGGER_NVRTC")
    candidates = [named] if named else []
    if not named:
        for folder in sys.path:
            candidates += sorted(glob.glob(os.path.join(folder, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12")))
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            print(f"{candidate}: {error}", file=sys.stderr)
    return None


class Nvrtc:
    """The few calls that compiling needs."""

    def __init__(self, lib):
        self.lib = lib
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            sys.exit(f"{name}: {self.lib.nvrtcGetErrorString(status).decode()}")

    def text(self, program, what):
        """The program's log or PTX."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def compile(self, name, files):
        """The PTX of one source."""
        headers = [header for header in files if header.endswith(".cuh")]
        strings = ctypes.c_char_p * len(headers)
        program = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            ctypes.c_char_p(files[name]),
            ctypes.c_char_p(name.encode()),
            ctypes.c_int(len(headers)),
            strings(*[files[header] for header in headers]),
            strings(*[header.encode() for header in headers]),
        )
        options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
        status = self.lib.nvrtcCompileProgram(program, ctypes.c_int(len(OPTIONS)), options)
        log = self.text(program, "ProgramLog").strip()
        if log:
            print(log, file=sys.stderr)
        if status:
            sys.exit(f"{name} does not compile")
        ptx = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return ptx


def main():
    if sys.argv[1:] not in (["build"], ["check"]):
        sys.exit(__doc__)
    check = sys.argv[1] == "check"
    lib = library()
    if lib is None:
        print("NVRTC is not installed for this Python; see scripts/kernels.py for how to get it")
        return 77 if check else 1
    nvrtc = Nvrtc(lib)
    if nvrtc.version != VERSION:
        print(f"NVRTC is {nvrtc.version}, and the committed PTX is made with {VERSION}")
        return 77 if check else 1
    files = sources()
    made = fingerprint(files)
    stale = []
    for name in (name for name in files if name.endswith(".cu")):
        header = f"// Made by scripts/kernels.py from {name}: do not edit.\n// sources {made}\n"
        ptx = header + nvrtc.compile(name, files)
        path = os.path.join(KERNELS, "ptx", name.replace(".cu", ".ptx"))
        if check:
            if not os.path.exists(path) or open(path).read() != ptx:
                stale.append(os.path.relpath(path, ROOT))
        else:
            with open(path, "w") as out:
                out.write(ptx)
            print(f"{os.path.relpath(path, ROOT)}: {len(ptx)} bytes")
    if stale:
        print("not current: " + ", ".join(stale) + "\nrun scripts/kernels.py build")
        return 1
    if check:
        print("the committed PTX is current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
