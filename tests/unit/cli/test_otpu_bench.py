import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from npuserve.cli import otpu_bench
from npuserve.devices.null import NullDevice


@pytest.mark.parametrize(("num_slots", "rows"), [(1, [1]), (5, [1, 2, 4])])
def test_no_more_rows_are_decoded_together_than_there_are_slots(
    num_slots: int, rows: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(*_: Any) -> Iterator[NullDevice]:
        yield NullDevice(num_slots=num_slots)

    monkeypatch.setattr(otpu_bench, "opened_device", opened)
    assert otpu_bench.main(["--prompt", "8", "--steps", "2", "--context", "4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [figure["rows"] for figure in figures if figure["what"] == "decode"] == rows
