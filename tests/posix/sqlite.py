#!/usr/bin/env python3
"""SQLite on a file system: several processes, and what must hold afterwards.

    sqlite.py run FILE [--mode delete|wal] [--seconds 10] [--writers 3]
    sqlite.py check FILE

Each writer moves amounts between accounts, and inserts, updates and deletes rows with blobs. Readers check the sum of
all accounts, which never changes. At the end: integrity_check, the sum, every blob against its checksum, and the
number of transactions against the writers' counts. synchronous=FULL.
"""
import argparse
import hashlib
import os
import random
import sqlite3
import sys
import time

ACCOUNTS, EACH = 500, 1000


def connect(path):
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    base.execute("pragma synchronous=full")
    return base


def create(path, mode):
    base = connect(path)
    if base.execute(f"pragma journal_mode={mode}").fetchone()[0] != mode:
        sys.exit(f"journal_mode={mode} is not to be had here")
    base.execute("create table account (id integer primary key, amount integer not null)")
    base.execute("create table item (id integer primary key, body blob not null, sum text not null)")
    base.execute("create index item_sum on item (sum)")
    base.execute("create table done (writer integer primary key, count integer not null)")
    base.execute("begin")
    base.executemany("insert into account values (?, ?)", ((n, EACH) for n in range(ACCOUNTS)))
    base.execute("commit")
    base.close()


def blob(chance):
    body = chance.randbytes(chance.choice([40, 400, 4000, 40000]))
    return body, hashlib.sha256(body).hexdigest()


def writer(path, number, seconds, out):
    chance, base, count = random.Random(number), connect(path), 0
    base.execute("insert into done values (?, 0)", (number,))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        base.execute("begin immediate")
        for _ in range(chance.randint(1, 4)):
            amount, a, b = chance.randint(1, 50), chance.randrange(ACCOUNTS), chance.randrange(ACCOUNTS)
            base.execute("update account set amount = amount - ? where id = ?", (amount, a))
            base.execute("update account set amount = amount + ? where id = ?", (amount, b))
        what = chance.randrange(4)
        if what < 2:
            base.execute("insert into item (body, sum) values (?, ?)", blob(chance))
        elif what == 2:
            base.execute("update item set body = ?, sum = ? where id = (select max(id) from item)", blob(chance))
        else:
            base.execute("delete from item where id = (select min(id) from item)")
        base.execute("update done set count = count + 1 where writer = ?", (number,))
        if chance.randrange(10) == 0:
            base.execute("rollback")
            continue
        base.execute("commit")
        count += 1
    os.write(out, f"{count}\n".encode())


def reader(path, seconds):
    base, end = connect(path), time.monotonic() + seconds
    while time.monotonic() < end:
        total, = base.execute("select sum(amount) from account").fetchone()
        if total != ACCOUNTS * EACH:
            sys.exit(f"a reader saw {total}, not {ACCOUNTS * EACH}")
        time.sleep(0.01)


def check(path, expected=None):
    base, wrong = connect(path), []
    if (found := base.execute("pragma integrity_check").fetchall()) != [("ok",)]:
        wrong.append(f"integrity_check: {found[:5]}")
    total, = base.execute("select sum(amount) from account").fetchone()
    if total != ACCOUNTS * EACH:
        wrong.append(f"the accounts sum up to {total}, not {ACCOUNTS * EACH}")
    bad = sum(hashlib.sha256(body).hexdigest() != digest for body, digest in base.execute("select body, sum from item"))
    if bad:
        wrong.append(f"{bad} blobs differ from their checksums")
    done, = base.execute("select sum(count) from done").fetchone()
    if not done or (expected is not None and done != expected):
        wrong.append(f"{done} transactions are there, {expected} were committed")
    for line in wrong:
        print(line)
    return not wrong


def fork(work):
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException as error:  # pylint: disable=broad-except
        print(f"{os.getpid()}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def run(path, mode, seconds, writers):
    create(path, mode)
    counts, out = os.pipe()
    begin = time.monotonic()
    children = [fork(lambda n=n: writer(path, n, seconds, out)) for n in range(writers)]
    children.append(fork(lambda: reader(path, seconds)))
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    took = time.monotonic() - begin
    os.close(out)
    with os.fdopen(counts) as text:
        done = sum(int(line) for line in text)
    print(f"sqlite {mode}: {done / took:.0f} transactions/s, {done} by {writers} writers")
    return not failed and check(path, done)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "check"])
    parser.add_argument("file")
    parser.add_argument("--mode", choices=["delete", "wal"], default="delete")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--writers", type=int, default=3)
    args = parser.parse_args()
    good = check(args.file) if args.command == "check" else run(args.file, args.mode, args.seconds, args.writers)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
