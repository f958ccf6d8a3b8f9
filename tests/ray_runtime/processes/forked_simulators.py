"""Two threads start simulators together: `python -m ... stock|apart`.

In a process of its own: of one that has run other tests nobody knows what a child inherits.
"""

import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

FORK = multiprocessing.get_context("fork")


def answer_once(end):
    """What a simulator does: it waits for a word of its parent, and answers."""
    end.send(end.recv())


def start(ends):
    child = FORK.Process(target=answer_once, args=(ends[1],), daemon=True)
    child.start()
    return child


def answers(end):
    end.send("a word")
    return end.poll(30) and end.recv() == "a word"


def notices_death(end):
    try:
        return end.poll(1) and end.recv() is None
    except EOFError:
        return True


def main(how):
    options = {}
    if how == "apart":
        from rlinf_async.ray_runtime.processes.forking import fork_apart

        options["initializer"] = fork_apart
    one, other = (ThreadPoolExecutor(1, **options) for _ in range(2))
    for thread in (one, other):
        thread.submit(int).result()
    ends, others = one.submit(FORK.Pipe).result(), other.submit(FORK.Pipe).result()
    second = other.submit(start, others).result()  # while the first thread has not closed its child's end
    first = one.submit(start, ends).result()
    ends[1].close()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    found = {"death is noticed": notices_death(ends[0]), "the other answers": answers(others[0])}
    second.join()
    everybodys = FORK.Pipe()  # of a thread that has not asked to be apart
    child = one.submit(start, everybodys).result()
    found["everybody's pipe goes to all"] = answers(everybodys[0])
    child.join()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
