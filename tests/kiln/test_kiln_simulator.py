"""--model with a checkpoint: the whole command without an NPU."""

from pathlib import Path

import httpx
import pytest

from kiln.kiln_server import kiln_in_process, write_config
from npuserve.sim import native
from tiny_checkpoint import tiny_config, write_checkpoint
from tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.skipif(not native.available(), reason="the native simulator was not built")


def test_a_checkpoint_folder_is_served_on_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPUSERVE_CACHE", str(tmp_path / "images"))
    tokenizer = tiny_tokenizer()
    folder = write_checkpoint(tmp_path / "tiny-model", tiny_config(vocab_size=tokenizer.get_vocab_size()))
    tokenizer.save(str(folder / "tokenizer.json"))
    llm = {"model": tmp_path / "none.rkllm", "max_context_len": 256, "max_new_tokens": 7, "system_prompt": "Be brief."}
    config = write_config(tmp_path / "config.ini", llm=llm)
    with kiln_in_process(config, "--model", str(folder), "--slots", "2", "--kv-ram-gb", "0") as served:
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "ignore_eos": True, "logprobs": True}
        reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
        assert reply["model"] == "tiny-model"
        assert reply["usage"]["completion_tokens"] == 7
        assert len(reply["choices"][0]["logprobs"]["content"]) == 7
        rendered = httpx.post(f"{served.url}/apply-template", json=body, timeout=60).json()["prompt"]
        assert "system\nBe brief." in rendered
        assert httpx.get(f"{served.url}/v1/stats").json()["backend"] == "isa"
        assert httpx.get(f"{served.url}/v1/models").json()["data"][0]["max_model_len"] == 256
    assert capsys.readouterr().err.startswith("kiln-serve: building the device image")
