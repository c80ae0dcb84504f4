"""Tables on a terminal."""

from longmlm.reports.tables import Table, text_table


def test_columns_are_aligned_although_chinese_characters_are_two_wide() -> None:
    lines = text_table(Table(["", "模型"], [["1", "天下 3 %"], ["天", "x"]])).splitlines()
    assert lines == ["        模型", "--  --------", "1   天下 3 %", "天         x"]
    assert text_table(Table(["a"], [["e\u0301"]])).splitlines()[1] == "-"
