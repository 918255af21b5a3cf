"""The vendor's LLM runtime, librkllmrt, over ctypes: its calls in each of the three binary layouts and nothing more."""

import ctypes
import logging
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_void_p
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npuserve.drivers.rkllm_layout import Layout
from npuserve.drivers.rkllm_structures import Structures
from npuserve.errors import DeviceError, DeviceUnavailableError

_log = logging.getLogger(__name__)


class CallState(IntEnum):
    """What a result callback is about; WAITING carries text that ends inside a UTF-8 character."""

    NORMAL = 0
    WAITING = 1
    FINISH = 2
    ERROR = 3


class InputKind(IntEnum):
    PROMPT = 0
    TOKEN = 1


class InferMode(IntEnum):
    GENERATE = 0
    LOGITS = 2


@dataclass(frozen=True, slots=True)
class RunSampling:
    """The runtime's sampling values, at init and in 1.3 per run; top_k 1 is greedy."""

    top_k: int = 1
    top_p: float = 0.8
    temperature: float = 0.7
    repeat_penalty: float = 1.3
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class InitSettings:
    """What the runtime is told once; what is not named here keeps the library's own default."""

    model_path: str
    max_context_len: int
    max_new_tokens: int
    sampling: RunSampling = field(default_factory=RunSampling)
    n_keep: int = -1
    embed_flash: int = 1


class Perf(NamedTuple):
    """The runtime's own figures for a run; from 1.2.1 on."""

    prefill_ms: float
    num_prefill_tokens: int
    generate_ms: float
    num_generate_tokens: int


class Result(NamedTuple):
    """One callback. `text` are bytes as they came; `logits` is a copy, float32 [num_tokens, vocab_size]."""

    state: CallState
    text: bytes
    token_id: int
    logits: NDArray[np.float32] | None
    perf: Perf | None


OnResult = Callable[[int, Result], None]

# Callbacks live as long as the process: the vendor's thread may call one late, even after destroy.
_KEPT_CALLBACKS: list[Any] = []


class Rkllm:
    """One loaded model. `run` from one thread at a time; `abort` and `is_running` from any.

    `on_result` gets every callback, with the id of its run, on a thread of the vendor's; it may come after its run
    has returned. Raises DeviceUnavailableError when the library cannot be used or refuses the model.
    """

    def __init__(self, library: Path, layout: Layout, settings: InitSettings, on_result: OnResult) -> None:
        self.layout = layout
        self._structures = Structures(layout)
        self._on_result = on_result
        try:
            self._library = ctypes.CDLL(str(library))
            self._declare()
        except (OSError, AttributeError) as error:
            raise DeviceUnavailableError(f"{library}: not a usable librkllmrt: {error}") from error
        self._handle: Any = c_void_p()
        self._callback = self._structures.result_callback(self._called)
        self._callbacks = self._structures.callback(result=self._callback)
        _KEPT_CALLBACKS.extend((self._callback, self._callbacks))
        self._init(settings)

    def set_chat_template(self, system: str, prefix: str, postfix: str) -> None:
        """What the runtime puts round a prompt; empty strings leave prompts as they are."""
        texts = [text.encode() for text in (system, prefix, postfix)]
        self._check(self._library.rkllm_set_chat_template(self._open_handle(), *texts), "rkllm_set_chat_template")

    def run(
        self,
        run_id: int,
        prompt: bytes | Sequence[int],
        mode: InferMode,
        *,
        keep_history: bool,
        sampling: RunSampling | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        """Feed text or token ids and block until the run ends; `run_id` is above 0.

        `sampling` and `max_new_tokens` need layout 1.3. Raises DeviceError for a non-zero return.
        """
        made = self._structures.input()
        if isinstance(prompt, bytes):
            made.kind = InputKind.PROMPT
            made.of.prompt = prompt
        else:
            ids = (c_int32 * len(prompt))(*prompt)
            made.kind = InputKind.TOKEN
            made.of.tokens.ids = ctypes.cast(ids, POINTER(c_int32))
            made.of.tokens.n_tokens = len(prompt)
        if self.layout is not Layout.V1_2_0:
            made.role = b"user"
        infer = self._structures.infer(mode=mode, keep_history=int(keep_history))
        if self.layout is Layout.V1_3:
            values = self._sampling(sampling or RunSampling())
            infer.sampling = ctypes.pointer(values)
            infer.max_new_tokens = 1 if max_new_tokens is None else max_new_tokens
        code = self._library.rkllm_run(self._open_handle(), ctypes.byref(made), ctypes.byref(infer), run_id)
        self._check(code, "rkllm_run")

    def clear_kv_cache(self) -> None:
        """Forget every token, a system prompt of the runtime's included."""
        ranges = () if self.layout is Layout.V1_2_0 else (None, None)
        self._check(self._library.rkllm_clear_kv_cache(self._open_handle(), 0, *ranges), "rkllm_clear_kv_cache")

    def abort(self) -> None:
        """Ask the run that is busy to end; without one nothing happens."""
        if self._handle and self.is_running():
            self._library.rkllm_abort(self._handle)

    def is_running(self) -> bool:
        return bool(self._handle) and self._library.rkllm_is_running(self._handle) == 1

    def close(self) -> None:
        """Unload the model; safe to call twice, not while a run is busy."""
        if self._handle:
            self._library.rkllm_destroy(self._handle)
            self._handle = c_void_p()

    def _declare(self) -> None:
        structures, library = self._structures, self._library
        library.rkllm_createDefaultParam.restype = structures.param
        library.rkllm_createDefaultParam.argtypes = []
        shape = POINTER(structures.callback) if self.layout is Layout.V1_3 else structures.result_callback
        library.rkllm_init.argtypes = [POINTER(c_void_p), POINTER(structures.param), shape]
        library.rkllm_run.argtypes = [c_void_p, POINTER(structures.input), POINTER(structures.infer), c_void_p]
        for name in ("rkllm_destroy", "rkllm_abort", "rkllm_is_running"):
            getattr(library, name).argtypes = [c_void_p]
        ranges = [] if self.layout is Layout.V1_2_0 else [POINTER(c_int)] * 2
        library.rkllm_clear_kv_cache.argtypes = [c_void_p, c_int, *ranges]
        library.rkllm_set_chat_template.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p]

    def _init(self, settings: InitSettings) -> None:
        param = self._library.rkllm_createDefaultParam()
        param.model_path = settings.model_path.encode()
        param.max_context_len = settings.max_context_len
        param.max_new_tokens = settings.max_new_tokens
        param.n_keep = settings.n_keep
        sampling = settings.sampling
        for name in RunSampling.__slots__:
            setattr(param, name, getattr(sampling, name))
        param.skip_special_token = True
        param.is_async = False
        param.extend.embed_flash = settings.embed_flash
        shape = ctypes.byref(self._callbacks) if self.layout is Layout.V1_3 else self._callback
        code = self._library.rkllm_init(ctypes.byref(self._handle), ctypes.byref(param), shape)
        if code != 0 or not self._handle:
            self._handle = c_void_p()
            raise DeviceUnavailableError(
                f"{settings.model_path}: rkllm_init returned {code}; check that the file was made for this chip and"
                f" runtime (layout {self.layout}), that it fits in memory, and that the NPU's device node may be opened"
            )

    def _sampling(self, sampling: RunSampling) -> Any:
        values = {name: getattr(sampling, name) for name in RunSampling.__slots__}
        return self._structures.sampling(mirostat=0, mirostat_tau=5.0, mirostat_eta=0.1, **values)

    def _open_handle(self) -> Any:
        if not self._handle:
            raise DeviceError("the runtime is closed; restart the server")
        return self._handle

    def _check(self, code: int, function: str) -> None:
        if code != 0:
            raise DeviceError(f"{function} returned {code}")

    def _called(self, result: Any, userdata: int | None, state: int) -> int:
        """On the vendor's thread: copy what the library owns, hand it on; nothing may be raised from here."""
        try:
            self._on_result(userdata or 0, _copied(result, CallState(state), has_perf=self.layout != Layout.V1_2_0))
        except Exception:
            _log.exception("a callback of the runtime could not be handled")
        return 0


def _copied(pointer: Any, state: CallState, *, has_perf: bool) -> Result:
    if not pointer:
        return Result(state, b"", -1, None, None)
    result = pointer.contents
    logits = None
    if result.logits.values and result.logits.vocab_size > 0 and result.logits.num_tokens > 0:
        shape = (result.logits.num_tokens, result.logits.vocab_size)
        logits = np.ctypeslib.as_array(result.logits.values, shape).copy()
    perf = None
    if has_perf and state is CallState.FINISH:
        figures = result.perf
        perf = Perf(figures.prefill_ms, figures.prefill_tokens, figures.generate_ms, figures.generate_tokens)
    return Result(state, result.text or b"", result.token_id, logits, perf)
