"""What the runtime is handed, field by field, in each layout, and what comes back from it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.fake_runtime import LAYOUTS, words, write_model
from npuserve.drivers.rkllm import CallState, InferMode, InitSettings, Result, Rkllm, RunSampling
from npuserve.drivers.rkllm_layout import Layout
from npuserve.errors import DeviceError, DeviceUnavailableError
from patience import WAIT_S

SAMPLING = RunSampling(
    top_k=7, top_p=0.85, temperature=0.65, repeat_penalty=1.25, frequency_penalty=0.5, presence_penalty=-0.25
)


class Opened:
    """A model on the fake runtime, the results it called back with, and its log."""

    def __init__(self, library: Path, layout: Layout, model: Path, log: Path) -> None:
        self.results: list[tuple[int, Result]] = []
        self.threads: set[int] = set()
        self._log = log
        settings = InitSettings(str(model), 4096, 321, SAMPLING, n_keep=5, embed_flash=0)
        self.rkllm = Rkllm(library, layout, settings, self._take)

    def _take(self, run_id: int, result: Result) -> None:
        self.results.append((run_id, result))
        self.threads.add(threading.get_ident())

    def run(self, run_id: int = 9, prompt: bytes | list[int] = b"hello", mode: InferMode = InferMode.GENERATE) -> None:
        self.rkllm.run(run_id, prompt, mode, keep_history=False, sampling=SAMPLING, max_new_tokens=17)

    def log(self, start: str) -> dict[str, str]:
        """The fields of the last line that begins with `start`."""
        line = [line for line in self._log.read_text().splitlines() if line.startswith(start)][-1]
        return dict(word.split("=", 1) for word in line.split(" ") if "=" in word)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return Layout(request.param)


@pytest.fixture
def open_model(layout: Layout, runtime_of: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def make(pieces: list[tuple[int, str | bytes]] | None = None, **behaviour: int) -> Opened:
        model = write_model(tmp_path / "m.rkllm", pieces or words("all is well"), log=tmp_path / "log", **behaviour)
        opened.append(Opened(runtime_of(layout), layout, model, tmp_path / "log"))
        return opened[-1]

    yield make
    for one in opened:
        one.rkllm.close()


def test_init_hands_over_every_value(open_model: Callable[..., Opened], tmp_path: Path) -> None:
    assert open_model().log("init") | {"size": ""} == {
        "path": str(tmp_path / "m.rkllm"),
        "max_context_len": "4096",
        "max_new_tokens": "321",
        "top_k": "7",
        "n_keep": "5",
        "top_p": "0.85",
        "temperature": "0.65",
        "repeat_penalty": "1.25",
        "frequency_penalty": "0.5",
        "presence_penalty": "-0.25",
        "skip_special_token": "1",
        "embed_flash": "0",
        "size": "",
    }


def test_a_run_hands_over_the_prompt_and_what_its_layout_has(open_model: Callable[..., Opened], layout: Layout) -> None:
    opened = open_model()
    opened.run(prompt="naïve?".encode())
    found = opened.log("run")
    assert found["mode"] == "0"
    assert found["keep_history"] == "0"
    assert found["prompt"] == "na\\xc3\\xafve?"
    assert ("enable_thinking" in found) == (layout is not Layout.V1_2_0)
    if layout is Layout.V1_3:
        assert found["max_new_tokens"] == "17"
        assert found["top_k"] == "7"
        assert found["temperature"] == "0.65"
        assert found["presence_penalty"] == "-0.25"


def test_a_run_hands_over_token_ids(open_model: Callable[..., Opened]) -> None:
    opened = open_model()
    opened.run(prompt=[1, 151643, 0, 5])
    assert opened.log("run")["tokens"] == "1,151643,0,5"


def test_callbacks_come_from_a_thread_of_the_runtime_with_the_run_they_belong_to(
    open_model: Callable[..., Opened],
) -> None:
    opened = open_model()
    opened.run(run_id=42)
    assert {run_id for run_id, _ in opened.results} == {42}
    assert [result.text for _, result in opened.results] == [b"all", b" is", b" well", b""]
    assert [result.token_id for _, result in opened.results[:3]] == [100, 101, 102]
    assert opened.results[-1][1].state is CallState.FINISH
    assert threading.get_ident() not in opened.threads


def test_a_piece_that_ends_inside_a_character_is_waiting(open_model: Callable[..., Opened]) -> None:
    opened = open_model([(1, b"\xe6\x9d"), (2, b"\xb1!")])
    opened.run()
    assert [(result.state, result.text) for _, result in opened.results[:2]] == [
        (CallState.WAITING, b"\xe6\x9d"),
        (CallState.NORMAL, b"\xb1!"),
    ]


def test_the_runtimes_own_figures_are_read_where_the_layout_has_them(
    open_model: Callable[..., Opened], layout: Layout
) -> None:
    opened = open_model()
    opened.run(prompt=b"eight by")
    perf = opened.results[-1][1].perf
    if layout is Layout.V1_2_0:
        assert perf is None
    else:
        assert perf == (12.5, 2, 50.0, 3)


def test_logits_are_copied_whole(open_model: Callable[..., Opened]) -> None:
    opened = open_model([(77, "x")], vocab=300)
    opened.run(prompt=[3, 4], mode=InferMode.LOGITS)
    logits = opened.results[0][1].logits
    assert logits is not None
    assert logits.shape == (1, 300)
    assert int(logits[0].argmax()) == 77


def test_a_failing_run_names_the_function_and_its_code(open_model: Callable[..., Opened]) -> None:
    opened = open_model(fail_run=-7)
    with pytest.raises(DeviceError, match="rkllm_run returned -7"):
        opened.run()


def test_a_failing_init_says_what_to_check(open_model: Callable[..., Opened]) -> None:
    with pytest.raises(DeviceUnavailableError, match="rkllm_init returned -5; check that the file was made"):
        open_model(fail_init=-5)


def test_abort_ends_a_run_and_a_late_callback_does_no_harm(open_model: Callable[..., Opened]) -> None:
    opened = open_model(hold_after=1, late=1)
    first, late = threading.Event(), threading.Event()
    told = opened._take

    def take(run_id: int, result: Result) -> None:
        told(run_id, result)
        (late if result.text == b"LATE" else first).set()

    opened.rkllm._on_result = take
    thread = threading.Thread(target=opened.run)
    thread.start()
    assert first.wait(WAIT_S)
    opened.rkllm.abort()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert not opened.rkllm.is_running()
    assert late.wait(WAIT_S), "the late callback never came"
    states = [result.state for _, result in opened.results]
    assert states.index(CallState.FINISH) == len(states) - 2


def test_the_runtimes_own_template_can_be_switched_off(open_model: Callable[..., Opened], tmp_path: Path) -> None:
    opened = open_model()
    opened.rkllm.set_chat_template("", "", "")
    opened.rkllm.clear_kv_cache()
    log = (tmp_path / "log").read_text()
    assert "template system=[] prefix=[] postfix=[]" in log
    assert "clear keep_system_prompt=0 range=0" in log


def test_a_closed_runtime_says_so(open_model: Callable[..., Opened]) -> None:
    opened = open_model()
    opened.rkllm.close()
    opened.rkllm.close()
    opened.rkllm.abort()
    with pytest.raises(DeviceError, match="closed"):
        opened.run()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"not a library")
    with pytest.raises(DeviceUnavailableError, match="not a usable librkllmrt"):
        Rkllm(tmp_path / "x.so", Layout.V1_2, InitSettings("m", 16, 16), lambda run_id, result: None)
