#!/usr/bin/env python3
"""Records the commands under `## Five minutes of use` of the README: runs them on a terminal of its
own, and draws what they print.

    scripts/record.py OUTRIGGER FILE.svg   needs what the commands need: /dev/fuse, bubblewrap

The picture is one SVG without scripts. Its style moves the lines up, one after the other, and
begins again at the end. Where animations are not shown, it is the first screen. Commands run in a
new home directory, which the picture calls /home/me. How long each line stays is a matter of
reading, not of the machine.
"""
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 104, 26
WIDTH, HEIGHT, MARGIN, TOP = 8.0, 18, 14, 40  # of a character, a line, and around them
COMMAND_SECONDS, LINE_SECONDS, END_SECONDS = 1.1, 0.22, 5.0
TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|(\r)|(\n)|([^\x1b\r\n])", re.S)


def commands():
    """The lines of the section's blocks, in order."""
    section = (ROOT / "README.md").read_text().split("## Five minutes of use", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def printed(script, program):
    """What each line of a script prints to a terminal. The shell says by a mark when it begins the next one."""
    home = tempfile.mkdtemp(prefix="outrigger-record-")
    os.chmod(home, 0o755)  # programs of jobs run as another user, who must be able to enter
    marked = "".join(f"printf '\\036'\n{line}\n" for line in script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTRIGGER_", "XDG_"))}
    environment |= {"HOME": home, "PATH": f"{Path(program).resolve().parent}:{os.environ['PATH']}", "TERM": "xterm", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shell = subprocess.Popen(["bash", "-euc", marked], cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
    os.close(terminal)
    text = b""
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # nobody has the terminal any more
            break
        if not piece:
            break
        text += piece
    text = text.decode().replace(home, "/home/me")
    shutil.rmtree(home, ignore_errors=True)
    if shell.wait() != 0:
        sys.exit(f"a command failed: {text[-500:]}")
    return text.split("\x1e")[1:]


def screen(text):
    """The lines that a terminal shows in the end, each as long as it was printed. A line that is written over is gone."""
    lines, row, column, cut = [""], 0, 0, False
    for token in TOKEN.finditer(text):
        parameter, final, back, down, character = token.groups()
        if final == "K":
            lines[row] = ""
        elif final in ("A", "F"):
            row, column = max(0, row - int(parameter or 1)), 0
        elif final == "J":
            lines[row:] = [""]
        elif final in ("l", "h") and parameter == "?7":
            cut = final == "l"
        elif back:
            column = 0
        elif down:
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        elif character and not (cut and column >= COLUMNS):
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines[: len(lines) - (not lines[-1])]]


def draw(recorded):
    """The picture of commands and what each of them printed."""
    rows, times, now = [], [], 0.5
    for command, output in recorded:
        code, _, comment = (part.strip() for part in command.partition(" # "))
        assert len(code) + 2 <= COLUMNS, f"too long for the picture: {code}"
        # An empty line goes before a command, then its comment.
        rows += [""] if rows else []
        rows += [f'<tspan class="c"># {escape(comment, quote=False)}</tspan>'] if comment else []
        rows.append(f'<tspan class="p">$</tspan> <tspan class="b">{escape(code, quote=False)}</tspan>')
        times += [now] * (len(rows) - len(times))
        now += COMMAND_SECONDS
        output = [part for line in output for part in textwrap.wrap(line, COLUMNS, replace_whitespace=False, break_on_hyphens=False) or [""]]
        for line in output:
            rows.append(escape(line, quote=False))
            times.append(now)
            now += LINE_SECONDS
        if output:
            now += LINE_SECONDS * min(len(output), 4)
    end = now + END_SECONDS
    # Lines that come at once are one step. On the first screen a cover moves down and shows them,
    # later all lines move up.
    counts = {0.0: 0} | {at: count for count, at in enumerate(times, 1)} | {end: len(rows)}
    def frames(offset):
        return "".join(f"{100 * at / end:.2f}%{{transform:translateY({offset(count)}px)}}" for at, count in counts.items())

    cover, lines = frames(lambda count: min(count, ROWS) * HEIGHT), frames(lambda count: min(0, ROWS - count) * HEIGHT)
    texts = "\n".join(f'<text y="{(number + 1) * HEIGHT - 5}">{row}</text>' for number, row in enumerate(rows) if row)
    wide, high = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + TOP + MARGIN
    lights = "".join(f'<circle cx="{MARGIN + 6 + 18 * number}" cy="18" r="5.5" fill="{fill}"/>' for number, fill in enumerate(["#e0685e", "#d9a343", "#6fae5c"]))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high}" width="{wide:g}" height="{high}" role="img" aria-labelledby="title">
<title id="title">Outrigger: the README's five minutes, recorded on a terminal</title>
<style>
text{{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace;fill:#c9d1d9;white-space:pre}}
.p{{fill:#7cc36e}}.b{{fill:#f0f3f6;font-weight:600}}.c{{fill:#8b949e}}
.l{{animation:l {end:.1f}s step-end infinite}}
.h{{animation:h {end:.1f}s step-end infinite}}
@keyframes l{{{lines}}}
@keyframes h{{{cover}}}
@media (prefers-reduced-motion:reduce){{.l,.h{{animation:none}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
{lights}
<svg x="{MARGIN - 4}" y="{TOP}" width="{COLUMNS * WIDTH + 8:g}" height="{ROWS * HEIGHT}"><g transform="translate(4)"><g class="l" xml:space="preserve">
{texts}
</g><rect class="h" x="-4" width="102%" height="100%" fill="#0d1117" transform="translate(0 {ROWS * HEIGHT})"/></g></svg>
</svg>
"""


def main(program, file):
    script = commands()
    recorded = list(zip(script, map(screen, printed(script, program)), strict=True))
    picture = draw(recorded)
    assert len(picture) < 150_000, f"{len(picture)} bytes"
    Path(file).write_text(picture)
    print(f"{file}: {len(recorded)} commands, {len(picture)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
