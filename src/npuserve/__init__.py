"""npuserve: an OpenAI-compatible server for one language model on one small accelerator."""

__version__ = "0.1.0"
