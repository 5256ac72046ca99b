from __future__ import annotations

from tests.jobs.conftest import make_config, quiet

__all__ = ["make_config", "quiet"]
