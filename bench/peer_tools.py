"""The tools that peers.py compares. All encrypt but `outrigger-plain`: Outrigger and the others as they do by
default, borg with repokey. Compression is the tool's default in restic, rustic and Outrigger; borg, kopia and vykar
get their fast zstd. Keys, caches and settings lie beside the store."""
import subprocess


class Tool:
    """A tool with its store. `entry` is put, relative to the directory `cwd`, under `name`."""

    name = install = ""

    def __init__(self, run, work, binary):
        self.run, self.binary = run, binary
        self.store, self.side = work / "store", work / "side"
        self.env = self.settings()

    def settings(self):
        return {}

    def __call__(self, *words, **more):
        return self.run([self.binary, *words], env=self.env, **more)

    def version(self):
        for word in ("--version", "version"):
            out = subprocess.run([self.binary, word], capture_output=True, text=True, check=False)
            if out.returncode == 0 and out.stdout:
                return out.stdout.strip().splitlines()[0]
        return "unknown"

    def fresh(self):
        """Makes a new, empty store, and empties what lies beside it."""
        subprocess.run(["rm", "-rf", "--", self.store, self.side], check=True)
        self.side.mkdir(parents=True)
        self.init()

    def init(self):
        self("init")

    def put(self, entry, name, cwd, bind=None):
        return self("backup", entry, cwd=cwd, bind=bind)

    def restore(self, entry, name, out):
        return self("restore", "latest", out)

    def between(self):
        """Keeps version 1 before version 2 takes its place, if that needs a command."""


class Outrigger(Tool):
    name, install, options = "outrigger", "cargo build --release", []

    def settings(self):
        return {"OUTRIGGER_STORE": str(self.store), "XDG_CONFIG_HOME": str(self.side)}

    def init(self):
        self("init", *self.options)

    def put(self, entry, name, cwd, bind=None):
        return self("put", entry, "--to", name, cwd=cwd, bind=bind)

    def between(self):
        self("snapshot", "create", "v1")

    def restore(self, entry, name, out):
        return self("get", name, out / entry)


class Plain(Outrigger):
    name, options = "outrigger-plain", ["--no-encryption"]


class Restic(Tool):
    name, install = "restic", "apt-get install restic"

    def settings(self):
        return {"RESTIC_PASSWORD": "benchmark", "RESTIC_REPOSITORY": str(self.store),
                "RESTIC_CACHE_DIR": str(self.side), "RESTIC_PROGRESS_FPS": "0.1"}

    def restore(self, entry, name, out):
        return self("restore", "latest", "--target", out)


class Borg(Tool):
    name, install, count = "borg", "apt-get install borgbackup", 0

    def settings(self):
        return {"BORG_PASSPHRASE": "benchmark", "BORG_REPO": str(self.store), "BORG_BASE_DIR": str(self.side)}

    def init(self):
        self("init", "--encryption", "repokey")

    def put(self, entry, name, cwd, bind=None):
        self.count += 1
        return self("create", "--compression", "zstd,1", f"::archive{self.count}", entry, cwd=cwd, bind=bind)

    def restore(self, entry, name, out):
        return self("extract", f"::archive{self.count}", cwd=out)


class Rustic(Tool):
    name, install = "rustic", "cargo install rustic-rs --locked"

    def settings(self):
        return {"RUSTIC_PASSWORD": "benchmark", "RUSTIC_REPOSITORY": str(self.store),
                "RUSTIC_CACHE_DIR": str(self.side), "RUSTIC_NO_PROGRESS": "true"}


class Kopia(Tool):
    name, install = "kopia", "go build -tags nohtmlui -o bench-data/peers/bin/kopia . in its sources"

    def settings(self):
        return {"KOPIA_PASSWORD": "benchmark", "KOPIA_CONFIG_PATH": str(self.side / "config"), "KOPIA_CHECK_FOR_UPDATES": "false",
                "KOPIA_CACHE_DIRECTORY": str(self.side / "cache"), "KOPIA_LOG_DIR": str(self.side / "log")}

    def init(self):
        self("repository", "create", "filesystem", "--path", self.store)
        self("policy", "set", "--global", "--compression", "zstd-fastest")

    def put(self, entry, name, cwd, bind=None):
        self.put_at = cwd / entry
        return self("snapshot", "create", "--no-progress", entry, cwd=cwd, bind=bind)

    def restore(self, entry, name, out):
        # The newest snapshot of a path.
        return self("restore", "--no-progress", self.put_at, out / entry)


class Vykar(Tool):
    name, install = "vykar", "cargo build --release -p vykar-cli in its sources"

    def settings(self):
        return {"VYKAR_PASSPHRASE": "benchmark", "VYKAR_CONFIG": str(self.side / "vykar.yaml")}

    def init(self):
        (self.side / "vykar.yaml").write_text(
            f"repositories:\n  - url: {self.store}\ncache_dir: {self.side}/cache\nsources: []\n"
            "compression:\n  algorithm: zstd\n  zstd_level: 1\n")
        self("init")

    def put(self, entry, name, cwd, bind=None):
        self.leaves_out = (cwd / entry).is_dir()
        return self("backup", "--label", "bench", entry, cwd=cwd, bind=bind)

    def restore(self, entry, name, out):
        # It leaves out the name of a directory that was stored.
        return self("restore", "latest", out / entry if self.leaves_out else out)


TOOLS = [Outrigger, Plain, Restic, Borg, Rustic, Kopia, Vykar]
