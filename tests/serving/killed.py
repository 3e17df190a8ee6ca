"""A program whose children write to a store, and are killed in the middle of it, one after the other."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

from tests.serving.service import random_vectors
from vicinal.serving.limits import Limits
from vicinal.serving.store.folder_store import FolderStore

NUM_THREADS = 3


def write(folder: Path, pipe: int, number: int) -> None:
    """Add and delete for ever; a change is reported when it was acknowledged, and a delete also before it is tried."""
    store = FolderStore(folder, Limits()).__enter__()

    def work(thread: int) -> None:
        seed, mine = 100_000 * number + 10_000 * thread, list[int]()
        while True:
            seed += 1
            (added,) = store.add(random_vectors(1, seed), {"price": seed}, None, f"key {seed}").result()
            os.write(pipe, f"added {added} {seed}\n".encode())
            mine.append(added)
            if seed % 3 == 0:
                gone = mine.pop(0)
                os.write(pipe, f"tried {gone} 0\n".encode())
                assert store.delete([gone]).result() == [gone]
                os.write(pipe, f"deleted {gone} 0\n".encode())

    for thread in range(NUM_THREADS):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    signal.pause()


def main(folder: Path, num_rounds: int) -> None:
    """Print what the children reported."""
    rng = random.Random(0)
    for number in range(num_rounds):
        read, pipe = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            write(folder, pipe, number)
        os.close(pipe)
        with os.fdopen(read) as reports:
            for _ in range(rng.randint(10, 60)):
                sys.stdout.write(reports.readline())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sys.stdout.write(reports.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
