from configs.world_model import GuardConfig


def make(**fields: object) -> object:
    from platform.guard import Guard

    return Guard(GuardConfig(max_gap=0.2, patience=2, **fields))  # type: ignore[arg-type]


def test_a_small_gap_changes_nothing() -> None:
    guard = make()
    for _ in range(20):
        ruling = guard.observe(0.05, horizon=5)
        assert (ruling.shorten, ruling.paused, ruling.said) == (0, False, "")


def test_a_gap_beyond_the_limit_shortens_after_patience_and_says_so() -> None:
    guard = make()
    assert guard.observe(0.5, horizon=5).shorten == 0
    ruling = guard.observe(0.5, horizon=5)
    assert ruling.shorten == 1
    assert "0.50 above real" in ruling.said
    assert "horizon shortened to 4" in ruling.said


def test_the_gap_is_smoothed_over_batches() -> None:
    guard = make()
    guard.observe(0.0, horizon=5)
    guard.observe(1.0, horizon=5)
    # 0.8 * 0 + 0.2 * 1
    assert abs(guard.gap - 0.2) < 1e-12


def test_at_horizon_one_imagination_pauses_and_new_models_let_it_try_again() -> None:
    guard = make()
    guard.observe(0.9, horizon=1)
    assert guard.observe(0.9, horizon=1).paused
    assert guard.ruling().paused
    ruling = guard.models_improved()
    assert not ruling.paused
    assert "tried again" in ruling.said


def test_a_closed_gap_gives_the_horizon_back_step_by_step() -> None:
    guard = make()
    for _ in range(4):
        guard.observe(0.5, horizon=5)
    assert guard.ruling().shorten == 2
    for _ in range(40):
        guard.observe(0.0, horizon=3)
    assert guard.ruling().shorten == 0


def test_a_disabled_guard_only_measures() -> None:
    guard = make(enabled=False)
    for _ in range(10):
        ruling = guard.observe(0.9, horizon=5)
        assert (ruling.shorten, ruling.paused) == (0, False)
    assert guard.gap > 0.8


def test_state_continues_exactly() -> None:
    one, other = make(), make()
    for gap in (0.5, 0.4, 0.6):
        one.observe(gap, horizon=5)
    other.load(one.state())
    for gap in (0.5, 0.1, 0.0):
        assert one.observe(gap, horizon=4) == other.observe(gap, horizon=4)
    assert one.state() == other.state()
