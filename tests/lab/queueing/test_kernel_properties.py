"""Whatever the model, the kernel keeps its books straight."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from everstream_lab.queueing import model as m
from everstream_lab.queueing.simulation import simulate

laws = st.sampled_from(
    [m.constant(2e-3), m.normal(2e-3, 1e-3), m.exponential(2e-3), m.uniform(1e-3, 3e-3)]
)


@st.composite
def models(draw: st.DrawFn) -> m.Model:
    """Lines and graphs with a way back, some failing, always able to keep up."""
    names = tuple("abcd"[: draw(st.integers(1, 4))])
    operators = []
    for i, name in enumerate(names):
        routes: list[tuple[str, float]] = []
        if i + 1 < len(names):
            routes.append((names[i + 1], draw(st.sampled_from([1.0, 0.6]))))
        if draw(st.booleans()):
            routes.append((names[0], 0.2 if not routes or routes[0][1] < 1 else 0.0))
        operators.append(m.OperatorModel(name, draw(laws), draw(st.integers(1, 3)), tuple(routes)))
    entities = draw(st.integers(1, 5))
    gap = m.exponential(2e-3 * 2.5 * entities)
    failures = None
    if draw(st.booleans()):
        failures = m.Failures(
            tuple(name for name in names if draw(st.booleans())) or names[:1],
            # Constant gaps could end every attempt before its first stable checkpoint.
            draw(st.sampled_from([m.exponential(0.8), m.poisson(2.0), m.uniform(0.2, 2.0)])),
            recovery_s=draw(st.sampled_from([0.0, 0.1, 0.4])),
            detection_s=draw(st.sampled_from([0.0, 0.05])),
            clock=draw(st.sampled_from(["between_failures", "up_time"])),
            clocks=draw(st.sampled_from(["own", "shared"])),
            recovery=draw(st.sampled_from(["one_by_one", "together"])),
        )
    checkpoints = m.Checkpoints(
        draw(st.sampled_from([0.1, 0.3])),
        draw(st.sampled_from([0.0, 0.02])),
        draw(st.sampled_from([0.0, 0.05, 0.2])),
    )
    return m.Model(
        tuple(operators),
        (m.SourceModel(names[0], gap, entities),),
        window_tuples=draw(st.integers(1, 600)),
        checkpoints=checkpoints,
        failures=failures,
        behaviour=draw(st.sampled_from(["discard", "backlog"])),
        in_flight_limit=draw(st.sampled_from([2, 16, 256])),
        curve_step_s=0.05,
    )


@settings(max_examples=150)
@given(models(), st.integers(0, 10_000))
def test_every_tuple_is_accounted_for(model: m.Model, seed: int) -> None:
    run = simulate(model, seed)
    assert run.delivered == model.window_tuples
    inside = run.arrived - run.delivered - run.lost
    assert inside >= 0
    if model.behaviour == "backlog":
        assert run.lost == run.unprocessed == 0
        assert run.replayed == sum(pause.replayed for pause in run.pauses)
    else:
        assert run.replayed == 0 and run.unprocessed <= run.delivered
    assert all(wait_s >= 0 for wait_s in run.mean_wait_s)
    assert run.window_s >= 0 and math.isfinite(run.mean_latency_s) and run.mean_latency_s >= 0
    end_s = 0.0
    for pause in run.pauses:
        assert end_s <= pause.start_s + 1e-9 <= pause.end_s + 1e-9
        end_s = pause.start_s
        if pause.caught_up_s is not None:
            assert pause.caught_up_s >= pause.end_s
