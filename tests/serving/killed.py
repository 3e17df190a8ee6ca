"""A program whose children write to one index at the same time, and are killed in the middle of it, again and again."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tests.serving.service import random_vectors
from vicinal.cli.main import main as command
from vicinal.data import Table, save_embeddings
from vicinal.retrieval.index import shared_state
from vicinal.serving.folder_store import FolderStore
from vicinal.serving.limits import Limits

NUM_THREADS = 3
PER_COMMAND = 5  # images


def serve(folder: Path, pipe: int, number: int) -> None:
    """Add and delete for ever; a change is reported when it was acknowledged, and a delete also before it is tried."""
    store = FolderStore(folder, Limits(save_changes=20)).__enter__()

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


def run_commands(folder: Path, pipe: int, number: int) -> None:
    """Add images by `vicinal index add` for ever, and report each."""
    shared_state.MIN_PENDING = 20  # vector files are written often
    seed = 100_000 * number + 50_000
    while True:
        seed += 1
        table = Table(pd.DataFrame({"path": [f"/command/{seed}/{row}.png" for row in range(PER_COMMAND)]}))
        file = folder.parent / f"{seed}.parquet"
        save_embeddings(file, random_vectors(PER_COMMAND, seed), table)
        assert command(["index", "add", str(folder), str(file)]) == 0
        os.write(pipe, f"command {seed} 0\n".encode())


def started(target: Callable[[Path, int, int], None], folder: Path, read: int, pipe: int, number: int) -> int:
    child = os.fork()
    if not child:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        target(folder, pipe, number)
    return child


def main(folder: Path, num_rounds: int) -> None:
    """Print what the children reported."""
    rng = random.Random(0)
    for number in range(num_rounds):
        read, pipe = os.pipe()
        children = [started(target, folder, read, pipe, number) for target in (serve, run_commands)]
        os.close(pipe)
        with os.fdopen(read) as reports:
            left, lines = rng.randint(20, 120), list[str]()
            while len(lines) < left or "command" not in {line.split()[0] for line in lines}:
                lines.append(reports.readline())
            sys.stdout.writelines(lines)
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            sys.stdout.write(reports.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
