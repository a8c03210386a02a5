#!/usr/bin/env python3
"""Writes oar.json, the Grafana dashboard: one line per panel here, the rest is Grafana's wrapping."""
import json
import os


def quantiles(metric):
    return [(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{model_name=~\"$model\"}}[$__rate_interval])))", f"p{q * 100:g}")
            for q in (0.5, 0.9, 0.99)]


def gauge(metric, legend="{{model_name}}"):
    return [(f'{metric}{{model_name=~"$model"}}', legend)]


def rate(metric, legend="{{model_name}}", by="model_name"):
    return [(f'sum by ({by}) (rate({metric}{{model_name=~"$model"}}[$__rate_interval]))', legend)]


PANELS = [
    ("Requests", "short", gauge("vllm:num_requests_running", "running") + gauge("vllm:num_requests_waiting", "waiting")),
    ("Tokens per second", "short", rate("vllm:prompt_tokens_total", "prompt") + rate("vllm:generation_tokens_total", "generated")),
    ("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    ("Time between tokens", "s", quantiles("vllm:inter_token_latency_seconds")),
    ("End-to-end latency", "s", quantiles("vllm:e2e_request_latency_seconds")),
    ("Queue time", "s", quantiles("vllm:request_queue_time_seconds")),
    ("KV cache in use", "percentunit", gauge("vllm:kv_cache_usage_perc")),
    ("Prefix cache hit rate", "percentunit",
     [('sum(rate(vllm:prefix_cache_hits_total{model_name=~"$model"}[$__rate_interval])) / '
       'sum(rate(vllm:prefix_cache_queries_total{model_name=~"$model"}[$__rate_interval]))', "hits")]),
    ("Finished requests by reason", "reqps", rate("vllm:request_success_total", "{{finished_reason}}", "finished_reason")),
    ("Preemptions", "short", rate("vllm:num_preemptions_total")),
    ("Step duration", "s", quantiles("oar_step_duration_seconds")),
    ("HTTP answers by code", "reqps", [("sum by (code) (rate(oar_http_requests_total[$__rate_interval]))", "{{code}}")]),
    ("Memory of the process", "bytes", [("process_resident_memory_bytes", "{{instance}}")]),
    ("Memory of the model by use", "bytes", gauge("oar_model_bytes", "{{use}}")),
]


def main():
    source = {"type": "prometheus", "uid": "oar-prometheus"}
    panels = [{"id": i + 1, "title": title, "type": "timeseries", "datasource": source,
               "gridPos": {"h": 8, "w": 12, "x": 12 * (i % 2), "y": 8 * (i // 2)},
               "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
               "targets": [{"refId": chr(65 + k), "expr": expression, "legendFormat": legend, "datasource": source}
                           for k, (expression, legend) in enumerate(targets)]}
              for i, (title, unit, targets) in enumerate(PANELS)]
    dashboard = {"uid": "oar", "title": "Oar", "schemaVersion": 39, "version": 1, "refresh": "10s", "editable": True,
                 "time": {"from": "now-30m", "to": "now"}, "tags": ["oar"], "panels": panels,
                 "templating": {"list": [{"name": "model", "type": "query", "datasource": source, "includeAll": True,
                                          "multi": True, "current": {"text": "All", "value": "$__all"},
                                          "query": "label_values(vllm:num_requests_running, model_name)", "refresh": 2}]}}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "oar.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(dashboard, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
