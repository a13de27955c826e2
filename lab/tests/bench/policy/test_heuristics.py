"""The heuristics of other projects do what they do there."""

from __future__ import annotations

from codespec_lab.bench.policy.heuristics import ConfidenceStopped, PlusTwoMinusOne

from codespec.sequence import Candidates, Cap, Verdict
from codespec.speculation.policy import StepResults
from tests.speculation.sequences import drafted, sequence, verdict


def test_two_more_one_less() -> None:
    policy, made = PlusTwoMinusOne(10), sequence()
    lengths = []
    for right in (True, True, True, True, False, False, True):
        plan = policy.plan([made])
        (cap,) = plan.caps
        lengths.append(cap.tokens)
        found = drafted("suffix", cap.tokens)
        policy.observe(StepResults([(made, found, verdict(found, cap.tokens if right else 0))]))
    assert lengths == [5, 7, 9, 10, 10, 9, 8]
    for _ in range(20):
        policy.observe(StepResults([(made, drafted("suffix", 3), Verdict(0, (999,)))]))
    policy.observe(StepResults([(made, Candidates(), Verdict(0, (1,)))]))
    assert policy.plan([made]).caps[0].tokens == 1


def test_a_drafter_stops_below_the_threshold() -> None:
    assert ConfidenceStopped(8, 0.3).plan([sequence(), sequence()]).caps == [Cap(8, 0.3)] * 2
