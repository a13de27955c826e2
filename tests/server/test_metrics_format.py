"""What is written is what Prometheus reads, whatever the labels are; and histograms count right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from codespec.server.metrics_format import Family, Histogram, Sample, to_text

LABELS = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(st.characters(codec="utf-8"), max_size=12), max_size=3
)
NUMBERS = st.one_of(st.integers(0, 1 << 53), st.floats(0, 1e12))


@given(st.lists(st.tuples(LABELS, NUMBERS), max_size=4), st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_it_is_read_as_it_was_meant(found: list[tuple[dict[str, str], float]], said: str) -> None:
    family = Family("codespec:x_total", "counter", "a" + said, tuple(Sample(n, labels) for labels, n in found))
    (read,) = text_string_to_metric_families(to_text([family]))
    assert read.type == "counter" and read.name in ("codespec:x", "codespec:x_total")
    assert [(sample.labels, sample.value) for sample in read.samples] == [(labels, float(n)) for labels, n in found]


@given(st.lists(st.floats(0, 20), max_size=30))
def test_buckets(values: list[float]) -> None:
    histogram = Histogram((0, 1, 2.5, 10))
    for value in values:
        histogram.observe(value)
    (read,) = text_string_to_metric_families(to_text([Family("h", "histogram", "x", tuple(histogram.samples({})))]))
    for sample in read.samples:
        if sample.name == "h_bucket":
            assert sample.value == sum(value <= float(sample.labels["le"]) for value in values)
    assert [s.value for s in read.samples if s.name == "h_count"] == [len(values)]
