"""The dashboard asks for metrics and labels that exist. Whether Grafana likes it is tried by hand, when it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dsindex.execution.progress.displays import COUNTS, GAUGES, LABELS

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "cluster_configs" / "grafana_dashboard.json").read_bytes()
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS: list[dict[str, Any]] = [target for panel in PANELS for target in panel["targets"]]


def test_metrics_exist_and_each_is_shown() -> None:
    shown = {name for target in TARGETS for name in re.findall(r"ray_dsindex_(\w+)", target["expr"])}
    assert shown == set(GAUGES) | {f"{name}_total" for name in COUNTS}


def test_labels_exist() -> None:
    named = {label for target in TARGETS for label in re.findall(r"{{(\w+)}}", target["legendFormat"])}
    assert named <= {*LABELS, "instance"}
    assert all('build=~"$build"' in target["expr"] for target in TARGETS if "dsindex" in target["expr"])


def test_panels_have_places_and_a_datasource_of_their_own() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "build"}
    assert {part["datasource"]["uid"] for part in (*PANELS, *TARGETS)} == {"${datasource}"}
