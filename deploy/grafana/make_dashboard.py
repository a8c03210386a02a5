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


def infer(metric, legend, by="model"):
    return [(f'sum by ({by}) (rate({metric}{{model=~"$tensor_model"}}[$__rate_interval]))', legend)]


def per(metric, count):
    """Mean of a sum of microseconds, in seconds."""
    return (f'sum by (model) (rate({metric}{{model=~"$tensor_model"}}[$__rate_interval])) / 1000000 / '
            f'sum by (model) (rate({count}{{model=~"$tensor_model"}}[$__rate_interval]))')


def calls(protocol):
    return [(f"histogram_quantile({q}, sum by (le) (rate(oar_{protocol}_request_duration_seconds_bucket[$__rate_interval])))", f"p{q * 100:g}")
            for q in (0.5, 0.9, 0.99)]


ROWS = [
    ("Language models", [
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
        ("Memory of the model by use", "bytes", gauge("oar_model_bytes", "{{use}}")),
    ]),
    ("Ordinary models", [
        ("Requests answered and failed", "reqps", infer("nv_inference_request_success", "{{model}}") +
         infer("nv_inference_request_failure", "{{model}} failed: {{reason}}", "model, reason")),
        ("Waiting and running", "short", [('sum by (model) (nv_inference_pending_request_count{model=~"$tensor_model"})', "{{model}} waiting"),
                                          ('sum by (model) (oar_inference_running_requests{model=~"$tensor_model"})', "{{model}} running")]),
        ("Mean time of a request", "s", [(per("nv_inference_request_duration_us", "nv_inference_request_success"), "{{model}}"),
                                         (per("nv_inference_queue_duration_us", "nv_inference_request_success"), "{{model}} waiting")]),
        ("Mean time of a run", "s", [(per(f"nv_inference_compute_{part}_duration_us", "nv_inference_exec_count"), "{{model}} " + part)
                                     for part in ("input", "infer", "output")]),
        ("Rows of a batch", "short", [('sum by (model) (rate(nv_inference_count{model=~"$tensor_model"}[$__rate_interval])) / '
                                       'sum by (model) (rate(nv_inference_exec_count{model=~"$tensor_model"}[$__rate_interval]))', "{{model}}")]),
        ("Load time", "s", [('oar_inference_load_duration_seconds{model=~"$tensor_model"}', "{{model}} {{version}}")]),
    ]),
    ("HTTP and gRPC", [
        ("HTTP answers by code", "reqps", [("sum by (code) (rate(oar_http_requests_total[$__rate_interval]))", "{{code}}")]),
        ("HTTP time of a request", "s", calls("http")),
        ("gRPC calls by method and code", "reqps",
         [("sum by (method, code) (rate(oar_grpc_requests_total[$__rate_interval]))", "{{method}} {{code}}")]),
        ("gRPC time of a call", "s", calls("grpc")),
        ("HTTP connections", "short", [("oar_http_connections", "{{instance}}")]),
        ("Memory of the process", "bytes", [("process_resident_memory_bytes", "{{instance}}")]),
    ]),
]


def variable(name, query, source):
    return {"name": name, "type": "query", "datasource": source, "includeAll": True, "multi": True,
            "current": {"text": "All", "value": "$__all"}, "query": query, "refresh": 2}


def dashboard():
    source = {"type": "prometheus", "uid": "oar-prometheus"}
    panels, y = [], 0
    for row, members in ROWS:
        panels.append({"id": len(panels) + 1, "title": row, "type": "row", "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        for i, (title, unit, targets) in enumerate(members):
            panels.append({"id": len(panels) + 1, "title": title, "type": "timeseries", "datasource": source,
                           "gridPos": {"h": 8, "w": 12, "x": 12 * (i % 2), "y": y + 1 + 8 * (i // 2)},
                           "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                           "targets": [{"refId": chr(65 + k), "expr": expression, "legendFormat": legend, "datasource": source}
                                       for k, (expression, legend) in enumerate(targets)]})
        y += 1 + 8 * ((len(members) + 1) // 2)
    return {"uid": "oar", "title": "Oar", "schemaVersion": 39, "version": 2, "refresh": "10s", "editable": True,
            "time": {"from": "now-30m", "to": "now"}, "tags": ["oar"], "panels": panels,
            "templating": {"list": [variable("model", "label_values(vllm:num_requests_running, model_name)", source),
                                    variable("tensor_model", "label_values(nv_inference_count, model)", source)]}}


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "oar.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(dashboard(), out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
