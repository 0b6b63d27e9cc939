#!/usr/bin/env python3
"""Writes deploy/grafana/tetrad.json, the board over /metrics, from the table of panels below; --check only compares."""
import json
import sys

from generated import arguments, settle

HERE = '{job=~"$job",instance=~"$instance"}'
WINDOW = "[$__rate_interval]"
WIDTH = 24


def rate(name, by="instance"):
    return f"sum by ({by}) (rate({name}{HERE}{WINDOW}))"


def quantiles(name):
    return [(f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{HERE}{WINDOW})))", f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)]


def mean(name):
    return f"sum(rate({name}_sum{HERE}{WINDOW})) / sum(rate({name}_count{HERE}{WINDOW}))"


# Rows of (title, unit, width, [(expression, legend)], description).
ROWS = [
    ("Load", [
        ("Requests", "short", 8, [(f"vllm:num_requests_running{HERE}", "{{instance}} running"),
                                  (f"vllm:num_requests_waiting{HERE}", "{{instance}} waiting"),
                                  (f"tetrad:sequences_running{HERE}", "{{instance}} answers with a slot")], ""),
        ("Tokens per second", "short", 8, [(rate("vllm:prompt_tokens_total"), "{{instance}} prompt"),
                                           (rate("vllm:generation_tokens_total"), "{{instance}} answers")],
         "Prompt tokens count when a request starts, those found in the prefix cache too."),
        ("Answers ended, by reason", "reqps", 8, [(rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}")], ""),
        ("Refused and failed, by reason", "reqps", 8, [(rate("tetrad:requests_refused_total", "reason"), "refused: {{reason}}"),
                                                       (rate("tetrad:requests_failed_total", "reason"), "failed: {{reason}}")], ""),
        ("HTTP responses, by status", "reqps", 8, [(rate("http_requests_total", "status"), "{{status}}")],
         "499: the client went away before its answer was complete."),
        ("Clients that left", "reqps", 8, [(rate("tetrad:client_disconnects_total"), "{{instance}}")], ""),
    ]),
    ("Latency", [
        ("Time to first token", "s", 8, quantiles("vllm:time_to_first_token_seconds"), "From submission, so the queue is part of it."),
        ("Between tokens", "s", 8, quantiles("vllm:inter_token_latency_seconds"), ""),
        ("Whole request", "s", 8, quantiles("vllm:e2e_request_latency_seconds"), ""),
        ("In the queue", "s", 8, quantiles("vllm:request_queue_time_seconds"), ""),
        ("Reading the prompt", "s", 8, quantiles("vllm:request_prefill_time_seconds"), "From the start to the first token."),
        ("Writing the answer", "s", 8, quantiles("vllm:request_decode_time_seconds"), "From the first token to the last."),
        ("Mean time per token of an answer", "s", 8, quantiles("vllm:request_time_per_output_token_seconds"), ""),
        ("Computing", "s", 8, quantiles("vllm:request_inference_time_seconds"), "From the start to the last token."),
        ("HTTP, by route (p90)", "s", 8,
         [(f"histogram_quantile(0.9, sum by (le, handler) (rate(http_request_duration_seconds_bucket{HERE}{WINDOW})))", "{{handler}}")], ""),
    ]),
    ("Memory of the model", [
        ("Pages held by running requests", "percentunit", 8, [(f"vllm:kv_cache_usage_perc{HERE}", "{{instance}}")],
         "Pages that only the prefix cache refers to are not counted: they give way."),
        ("Pages", "short", 8, [(f"tetrad:pages{HERE}", "{{instance}} all"), (f"tetrad:pages_taken{HERE}", "{{instance}} taken"),
                               (f"tetrad:prefix_cache_pages{HERE}", "{{instance}} prefix cache")], ""),
        ("State slots", "short", 8, [(f"tetrad:slots{HERE}", "{{instance}} all"), (f"tetrad:slots_taken{HERE}", "{{instance}} taken")], ""),
        ("Prompt tokens found in the prefix cache", "percentunit", 8,
         [(f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}", "{{instance}}")], ""),
        ("Prompt tokens, by source", "short", 8, [(rate("vllm:prompt_tokens_by_source_total", "source"), "{{source}}")], ""),
        ("Prefix cache: evictions, second tier", "short", 8,
         [(rate("tetrad:prefix_cache_evictions_total"), "{{instance}} evictions per second"),
          (f"tetrad:prefix_cache_host_bytes{HERE}", "{{instance}} bytes in host memory")], ""),
        ("Preemptions", "cps", 8, [(rate("vllm:num_preemptions_total"), "{{instance}}")],
         "Answers that gave up their memory for others and were computed again."),
        ("Prompt tokens that wait", "short", 8, [(f"tetrad:waiting_prompt_tokens{HERE}", "{{instance}}")], ""),
        ("Context", "short", 8, [(f"tetrad:context_tokens{HERE}", "{{instance}} tokens"),
                                 (f"vllm:cache_config_info{HERE}", "{{instance}} pages of {{block_size}} tokens: {{num_gpu_blocks}}")], ""),
    ]),
    ("Work and process", [
        ("Steps", "cps", 8, [(rate("tetrad:steps_total"), "{{instance}} per second")], ""),
        ("Rows of a step", "short", 8, [(f"{rate('tetrad:step_rows_total')} / {rate('tetrad:steps_total')}", "{{instance}} mean"),
                                        *quantiles("vllm:iteration_tokens_total")], ""),
        ("Tokens of a request (mean)", "short", 8, [(mean("vllm:request_prompt_tokens"), "prompt"),
                                                    (mean("vllm:request_generation_tokens"), "answers"),
                                                    (mean("vllm:request_params_max_tokens"), "max_tokens asked for"),
                                                    (mean("vllm:request_params_n"), "answers asked for")], ""),
        ("CPU", "short", 8, [(rate("process_cpu_seconds_total"), "{{instance}} cores")], ""),
        ("Resident memory", "bytes", 8, [(f"process_resident_memory_bytes{HERE}", "{{instance}}")], "Mapped checkpoint files are part of it."),
        ("Open files", "short", 8, [(f"process_open_fds{HERE}", "{{instance}}")], ""),
    ]),
]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(identity, spec, x, y):
    title, unit, width, targets, description = spec
    return {
        "id": identity,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": 7},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
                    for i, (expression, legend) in enumerate(targets)],
    }


def variable(name, query):
    return {"name": name, "label": name, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name},
            "refresh": 2, "includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"}}


def board():
    panels, y = [], 0
    for title, specs in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        x, y = 0, y + 1
        for spec in specs:
            if x + spec[2] > WIDTH:
                x, y = 0, y + 7
            panels.append(panel(len(panels) + 1, spec, x, y))
            x += spec[2]
        y += 7
    return {
        "uid": "tetrad", "title": "tetrad", "tags": ["tetrad"], "schemaVersion": 39, "version": 1, "editable": True,
        "refresh": "15s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "graphTooltip": 1,
        "templating": {"list": [
            {"name": "datasource", "label": "datasource", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "label_values(vllm:num_requests_running, job)"),
            variable("instance", 'label_values(vllm:num_requests_running{job=~"$job"}, instance)'),
        ]},
        "panels": panels,
    }


def main():
    return settle({"deploy/grafana/tetrad.json": json.dumps(board(), indent=1) + "\n"}, arguments(__doc__))


if __name__ == "__main__":
    sys.exit(main())
