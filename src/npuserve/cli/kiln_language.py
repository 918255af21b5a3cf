"""kiln-serve's language model: an .rkllm on the NPU, or a checkpoint on the simulator where that was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npuserve.checkpoints.tokenizer_folder import TOKENIZER_FILE, TokenizerFolder
from npuserve.cli.kiln_models import model_name
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.devices.rkllm import RkllmRuntime, RkllmSettings
from npuserve.drivers.rkllm import RunSampling
from npuserve.engine.base import AnyEngine
from npuserve.engine.runtime_engine import RuntimeEngine
from npuserve.server.event_router import EventRouter
from npuserve.server.runtime_model import RuntimeModelFacts, runtime_model
from npuserve.server.sampling import SamplingDefaults
from npuserve.server.state import ServedModel
from npuserve.text.prompt_family import prompt_family


@dataclass(frozen=True, slots=True)
class Language:
    """A loaded language model; `close` releases the device once the engine has stopped."""

    model: ServedModel
    engine: AnyEngine
    path: Path
    backend: str
    close: Callable[[], None]
    notes: tuple[str, ...] = ()


def load_language(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    """Load `path`. Raises CheckpointError, ConfigError, DeviceUnavailableError."""
    return _load_rkllm(settings, path, router)


def _load_rkllm(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    family = prompt_family(path.name, settings.family)
    folder = find_tokenizer(settings, path)
    facts = RuntimeModelFacts(
        name=settings.common.served_model_name or model_name(path),
        context_length=settings.max_context_len,
        defaults=sampling_defaults(settings),
        system_prompt=settings.system_prompt,
        think=settings.common.think,
    )
    model, texts = runtime_model(facts, family, folder)
    runtime = RkllmRuntime(rkllm_settings(settings, path))
    engine = RuntimeEngine(runtime, texts, router.deliver, max_queue=settings.common.max_queue)
    notes = [f"runtime layout {runtime.layout}"]
    notes += [f"tokenizer and template from {folder.path}" if folder else f"prompt format {family.name}"]
    if not runtime.capabilities.honours_sampling:
        notes += ["sampling values of requests are ignored by this runtime; [llm] sampling = host honours them"]
    return Language(model, engine, path, "rkllm", runtime.close, tuple(notes))


def find_tokenizer(settings: KilnSettings, path: Path) -> TokenizerFolder | None:
    """The configured tokenizer, else the one beside the model. Raises CheckpointError when a file is missing."""
    if settings.tokenizer is not None:
        chosen = Path(settings.tokenizer).expanduser()
        return TokenizerFolder(chosen if chosen.is_dir() else chosen.parent)
    return TokenizerFolder(path.parent) if (path.parent / TOKENIZER_FILE).is_file() else None


def sampling_defaults(settings: KilnSettings) -> SamplingDefaults:
    """What holds where a request says nothing."""
    return SamplingDefaults(
        temperature=settings.temperature,
        top_k=min(settings.top_k, 64),
        top_p=settings.top_p,
        repetition_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        max_tokens=settings.max_new_tokens,
    )


def rkllm_settings(settings: KilnSettings, path: Path) -> RkllmSettings:
    sampling = RunSampling(
        top_k=settings.top_k,
        top_p=settings.top_p,
        temperature=settings.temperature,
        repeat_penalty=settings.repeat_penalty,
        frequency_penalty=settings.frequency_penalty,
        presence_penalty=settings.presence_penalty,
    )
    return RkllmSettings(
        model=path,
        library=settings.library,
        layout=settings.runtime,
        context_length=settings.max_context_len,
        sampling=sampling,
        n_keep=settings.n_keep,
        embed_flash=settings.embed_flash,
    )
