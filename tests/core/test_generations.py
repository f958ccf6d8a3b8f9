from rlinf_async.core.generations import Generations


def test_only_the_present_life_of_a_member_counts_and_those_to_come():
    generations = Generations()
    assert generations.lives(3, 0)
    generations.begin([3, 4], 2)
    assert [generations.lives(3, generation) for generation in range(4)] == [False, False, True, True]
    assert generations.lives(5, 0)


def test_a_life_does_not_begin_twice():
    generations = Generations()
    generations.begin([0], 2)
    generations.begin([0], 1)
    assert not generations.lives(0, 1)
