"""The dashboard asks for metrics and labels that exist. Whether Grafana likes it is tried by hand, when it changes."""

import json
import re
from pathlib import Path

from dsindex.execution.progress.displays import COUNTS, GAUGES, LABELS

DASHBOARD = json.loads((Path(__file__).parents[2] / "cluster_configs" / "grafana_dashboard.json").read_bytes())
PANELS = DASHBOARD["panels"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]


def test_metrics_exist_and_each_is_shown():
    shown = {name for target in TARGETS for name in re.findall(r"ray_dsindex_(\w+)", target["expr"])}
    assert shown == set(GAUGES) | {f"{name}_total" for name in COUNTS}


def test_labels_exist():
    named = {label for target in TARGETS for label in re.findall(r"{{(\w+)}}", target["legendFormat"])}
    assert named <= {*LABELS, "instance"}
    assert all('build=~"$build"' in target["expr"] for target in TARGETS if "dsindex" in target["expr"])


def test_panels_have_places_and_a_datasource_of_their_own():
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
