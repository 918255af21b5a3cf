"""Rockchip's NPU under its own loop: whole replies from librkllmrt."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from npuserve.core import SamplingParams
from npuserve.devices.runtime import RuntimeCapabilities, RuntimePiece, RuntimeUsage
from npuserve.drivers.rkllm import CallState, InferMode, InitSettings, OnResult, Perf, Result, Rkllm, RunSampling
from npuserve.drivers.rkllm_layout import Layout, find_layout, find_library
from npuserve.errors import DeviceError


@dataclass(frozen=True, slots=True)
class RkllmSettings:
    """`library` None looks in the usual places; `layout` is auto or a layout's name; `sampling` holds at init."""

    model: Path
    library: str | None = None
    layout: str = "auto"
    context_length: int = 2048
    sampling: RunSampling = field(default_factory=RunSampling)
    n_keep: int = -1
    embed_flash: int = 1


def open_library(settings: RkllmSettings, on_result: OnResult) -> Rkllm:
    """A loaded model. The reply's length is bounded per request, so at init it is bounded by the context only."""
    library = find_library(settings.library)
    init = InitSettings(
        model_path=str(settings.model),
        max_context_len=settings.context_length,
        max_new_tokens=settings.context_length,
        sampling=settings.sampling,
        n_keep=settings.n_keep,
        embed_flash=settings.embed_flash,
    )
    return Rkllm(library, find_layout(library, settings.layout), init, on_result)


@dataclass(slots=True)
class _Outcome:
    """What the callbacks told of a run besides its pieces."""

    perf: Perf | None = None
    has_failed: bool = False


class RkllmRuntime:
    """See `Runtime`. The runtime's own chat template is switched off: prompts come rendered."""

    def __init__(self, settings: RkllmSettings) -> None:
        self._lock = threading.Lock()
        self._run_id = 0
        self._on_piece: Callable[[RuntimePiece], None] | None = None
        self._outcome = _Outcome()
        self._defaults = settings.sampling
        self._rkllm = open_library(settings, self._called)
        self._rkllm.set_chat_template("", "", "")
        self._per_run = self._rkllm.layout is Layout.V1_3
        self.capabilities = RuntimeCapabilities("rkllm", settings.context_length, self._per_run)

    @property
    def layout(self) -> Layout:
        return self._rkllm.layout

    def generate(
        self, prompt: bytes | tuple[int, ...], sampling: SamplingParams, on_piece: Callable[[RuntimePiece], None]
    ) -> RuntimeUsage:
        """See `Runtime.generate`."""
        with self._lock:
            self._run_id += 1
            run_id = self._run_id
            outcome = self._outcome = _Outcome()
            self._on_piece = on_piece
        try:
            self._rkllm.run(
                run_id,
                prompt,
                InferMode.GENERATE,
                keep_history=False,
                sampling=run_sampling(sampling, self._defaults),
                max_new_tokens=min(sampling.max_tokens, self.capabilities.context_length),
            )
        finally:
            with self._lock:
                self._on_piece = None
        if outcome.has_failed:
            raise DeviceError("the runtime reported an error during the run")
        perf = outcome.perf
        return RuntimeUsage(perf.num_prefill_tokens if perf and perf.num_prefill_tokens > 0 else None)

    def abort(self) -> None:
        """See `Runtime.abort`."""
        self._rkllm.abort()

    def close(self) -> None:
        """See `Runtime.close`."""
        self._rkllm.close()

    def _called(self, run_id: int, result: Result) -> None:
        """A callback; one of an earlier run, or after the run's return, is dropped. `run_id` 0: it was not told."""
        with self._lock:
            if self._on_piece is None or run_id not in (0, self._run_id):
                return
            match result.state:
                case CallState.FINISH:
                    self._outcome.perf = result.perf
                case CallState.ERROR:
                    self._outcome.has_failed = True
                case CallState.NORMAL | CallState.WAITING:
                    self._on_piece(RuntimePiece(result.text, result.token_id))


def run_sampling(sampling: SamplingParams, defaults: RunSampling) -> RunSampling:
    """A request's values in the runtime's words; temperature 0 is its top_k 1."""
    made = replace(
        defaults,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        temperature=sampling.temperature,
        repeat_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
    )
    return replace(made, top_k=1, temperature=1.0) if sampling.temperature == 0.0 else made
