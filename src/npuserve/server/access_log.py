"""The log line of a request: who, what, which status, and nothing that a client may have put into the address."""

import logging


class _WithoutQuery(logging.Filter):
    """Cuts the query off the path of uvicorn's access records: clients put keys there, wrongly but often."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            record.args = (client, method, str(path).partition("?")[0], version, status)
        return True


_filter = _WithoutQuery()


def hide_queries() -> None:
    """From now on no query is logged; may be called again."""
    logging.getLogger("uvicorn.access").addFilter(_filter)
