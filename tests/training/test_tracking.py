from longmlm.training import tracking


def test_lines_come_back_in_order(tmp_path):
    for step in range(3):
        tracking.append(tmp_path, {"step": step, "loss": 1.5 * step})
    assert [line["loss"] for line in tracking.read(tmp_path)] == [0.0, 1.5, 3.0]


def test_line_cut_off_by_a_crash_is_left_out(tmp_path):
    tracking.append(tmp_path, {"step": 1})
    with (tmp_path / tracking.METRICS).open("a") as file:
        file.write('{"step": 2, "lo')
    assert tracking.read(tmp_path) == [{"step": 1}]


def test_lines_after_the_resumed_step_are_dropped_and_the_rest_stays(tmp_path):
    for step in (1, 2, 2, 3, 4):
        tracking.append(tmp_path, {"step": step})
    tracking.forget_after(tmp_path, 2)
    assert [line["step"] for line in tracking.read(tmp_path)] == [1, 2, 2]
    tracking.append(tmp_path, {"step": 3})
    assert [line["step"] for line in tracking.read(tmp_path)] == [1, 2, 2, 3]


def test_run_without_metrics_has_no_lines(tmp_path):
    assert tracking.read(tmp_path) == []
