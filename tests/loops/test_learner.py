from rlinf_async.loops.learner import learn_batch
from tests.loops.virtual import run


class Pieces:
    """Hands over what `arrivals` lists, call by call."""

    def __init__(self, *arrivals):
        self._arrivals, self.asked = list(arrivals), []

    async def take(self, batch, *, whole):
        self.asked.append((batch, whole))
        arrived = self._arrivals.pop(0)
        return arrived, not self._arrivals


class Learner:
    def __init__(self):
        self.lines = []

    def begin(self, batch):
        self.lines.append(("begin", batch))

    def accept(self, pieces):
        self.lines.append(("accept", pieces))

    def finish(self):
        self.lines.append(("finish",))
        return {"loss": 1.0}


def test_a_streaming_learner_is_handed_what_arrives_as_it_arrives():
    pieces, learner = Pieces(["a"], ["b", "c"]), Learner()
    metrics = run(learn_batch(batch=5, pieces=pieces, learner=learner, streaming=True))
    assert learner.lines == [("begin", 5), ("accept", ["a"]), ("accept", ["b", "c"]), ("finish",)]
    assert pieces.asked == [(5, False), (5, False)]
    assert metrics == {"loss": 1.0}


def test_without_streaming_the_whole_batch_is_handed_over_at_once():
    pieces, learner = Pieces(["a", "b"]), Learner()
    run(learn_batch(batch=5, pieces=pieces, learner=learner, streaming=False))
    assert learner.lines == [("begin", 5), ("accept", ["a", "b"]), ("finish",)]
    assert pieces.asked == [(5, True)]
