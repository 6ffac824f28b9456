#!/usr/bin/env python3
"""Checks deploy/ against a running server: every metric and label that a query of the dashboard or of the alerts names is in
/metrics, and every file that the compose file mounts is there."""
import json
import pathlib
import re
import sys

from counting import check, finish
from serving import Server

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
METRIC = re.compile(r"\b((?:sglang:|process_|hadal_)\w+|up)\b(?:\{([^}]*)\})?")
OF_PROMETHEUS = {"instance", "job"}  # labels that the scrape adds


def exported(text):
    """Returns {sample's name: labels of its samples} of a page of metrics."""
    found = {"up": set()}
    for line in text.splitlines():
        sample = re.match(r"([\w:]+)(?:\{(.*)\})? \S+$", line)
        if sample and not line.startswith("#"):
            found.setdefault(sample[1], set()).update(re.findall(r'(\w+)="', sample[2] or ""))
    return found


def check_query(where, query, samples, legend=""):
    named = METRIC.findall(query)
    check(f"{where} has a metric", named, query)
    known = set(OF_PROMETHEUS)
    for name, selector in named:
        check(f"{where}: {name} is exported", name in samples, query)
        known |= samples.get(name, set())
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            check(f"{where}: {name} has the label {label}", label in samples.get(name, set()) | OF_PROMETHEUS, query)
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        for label in re.split(r",\s*", group):
            check(f"{where}: grouped by {label}", label in known, query)
    for label in re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend):
        check(f"{where}: shows {label}", label in known, legend)


def check_dashboard(samples):
    dashboard = json.loads((DEPLOY / "grafana/hadal.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    check("panels have ids of their own", len({panel["id"] for panel in panels}) == len(panels) > 10, len(panels))
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels:
        check(f"{panel['title']} says what it shows", panel["description"].endswith("."), panel["description"])
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            check(f"{panel['title']} uses variables that exist", used <= variables, used)
            check_query(panel["title"], target["expr"], samples, target["legendFormat"])
    for variable in dashboard["templating"]["list"]:
        asked = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", variable["query"])
        if asked:
            check(f"the variable {variable['name']}", asked[1] in samples and
                  asked[2] in samples[asked[1]] | OF_PROMETHEUS, variable["query"])


def check_rules(samples):
    text = (DEPLOY / "prometheus/hadal.rules.yml").read_text(encoding="utf-8")
    rules = re.findall(r'alert: (\w+)\n +expr: (.*)\n(?: +for: \w+\n)? +labels: .*\n +annotations:\n +summary: "(.*)"', text)
    check("every alert is read", len(rules) == text.count("- alert:") > 5, [name for name, _, _ in rules])
    for name, query, summary in rules:
        check_query(name, query, samples, summary)


def check_compose():
    text = (DEPLOY / "compose.yml").read_text(encoding="utf-8")
    mounts = re.findall(r"- \./([\w./]+):", text)
    check("files are mounted", len(mounts) > 3, text)
    for path in mounts:
        check(f"{path} exists", (DEPLOY / path).exists())
    built = re.search(r"context: (\S+)\n\s+dockerfile: (\S+)\n\s+target: \$\{HADAL_IMAGE:-(\w+)\}", text)
    recipe = DEPLOY / built[1] / built[2]
    check("the image's recipe exists", recipe.is_file(), recipe)
    check("and has the stage", f" AS {built[3]}\n" in recipe.read_text(encoding="utf-8"), built[3])
    flags = re.search(r"command: (\[.*\])", text)
    return json.loads(flags[1])


def main():
    command = check_compose()
    check("metrics are on", "--enable-metrics" in command, command)
    with Server(*[flag for flag in command if flag == "--enable-metrics"]) as server:
        server.request("GET", "/health")
        status, _, page = server.request("GET", "/metrics")
        check("metrics answer", status == 200, status)
        samples = exported(page.decode())
        check_dashboard(samples)
        check_rules(samples)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
