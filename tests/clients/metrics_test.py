#!/usr/bin/env python3
"""Reads /metrics through Prometheus' own text parser: SGLang's names, types and labels, and numbers that add up."""
import json
import sys

from prometheus_client.parser import text_string_to_metric_families

from checks import Server, check, check_equal, finish, run

GAUGES = ("num_running_reqs num_queue_reqs num_used_tokens token_usage gen_throughput cache_hit_rate spec_accept_length "
          "spec_accept_rate num_retracted_reqs max_total_num_tokens page_size utilization is_cuda_graph "
          "startup_time_seconds").split()
COUNTERS = ("prompt_tokens generation_tokens cached_tokens num_requests num_aborted_requests evicted_tokens").split()
HISTOGRAMS = ("time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds "
              "queue_time_seconds prompt_tokens_histogram generation_tokens_histogram").split()
PROCESS = ("process_resident_memory_bytes process_virtual_memory_bytes process_cpu_seconds process_open_fds process_max_fds "
           "process_start_time_seconds hadal_build_info").split()  # names without the prefix


def scrape(server):
    status, headers, text = server.request("GET", "/metrics")
    check_equal("status", status, 200)
    check("content type", headers["Content-Type"].startswith("text/plain; version=0.0.4"), headers["Content-Type"])
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def value(families, name):
    samples = [sample for sample in families[name].samples if sample.name in (name, name + "_total")]
    check_equal(f"one sample of {name}", len(samples), 1)
    return samples[0].value


def counts(families, prefix):
    return [value(families, prefix + name) for name in ("prompt_tokens", "generation_tokens", "cached_tokens",
                                                        "num_requests", "num_aborted_requests")]


def names_and_types(server, prefix, model):
    families = scrape(server)
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
        for name in names:
            family = families.get(prefix + name)
            check(f"{prefix}{name}", family is not None and family.type == kind and family.documentation, family)
            if family is not None:
                check(f"labels of {name}", family.samples and all(sample.labels.get("model_name") == model
                                                                  for sample in family.samples), family.samples)
    check("nothing else without the prefix", {name for name in families if not name.startswith(prefix)} == set(PROCESS),
          list(families))
    version = families["hadal_build_info"].samples[0].labels["version"]
    check_equal("version", version, json.loads(server.request("GET", "/server_info")[2])["version"])
    answers = {(sample.labels["endpoint"], sample.labels["status_code"]): sample.value
               for sample in families[prefix + "http_responses"].samples}
    check("answers by endpoint and status", answers.get(("/health", "200"), 0) > 0, answers)
    check_equal("page size", value(families, prefix + "page_size"), 64)
    check("pool", value(families, prefix + "max_total_num_tokens") >= 4096)
    check_equal("idle", value(families, prefix + "num_running_reqs"), 0)


def histogram(families, name, wanted_count):
    samples = families[name].samples
    buckets = [(float(sample.labels["le"]), sample.value) for sample in samples if sample.name == name + "_bucket"]
    totals = {sample.name: sample.value for sample in samples}
    check(f"{name} grows", buckets == sorted(buckets) and
          [count for _, count in buckets] == sorted(count for _, count in buckets), buckets)
    check(f"{name} ends at infinity", buckets and buckets[-1] == (float("inf"), totals[name + "_count"]), buckets)
    check_equal(f"{name} counts", totals[name + "_count"], wanted_count)
    check(f"{name} sums", totals[name + "_sum"] > 0, totals)


def numbers_add_up(server):
    before = counts(scrape(server), "sglang:")
    prompt_tokens = output_tokens = cached_tokens = 0
    for i in range(3):
        status, answer = server.post("/generate", {"text": "Once upon a time in a land far away there was a fox. " * 8,
                                                   "sampling_params": {"max_new_tokens": 9, "temperature": 0,
                                                                       "ignore_eos": True}})
        check_equal("answered", status, 200)
        prompt_tokens += answer["meta_info"]["prompt_tokens"]
        output_tokens += answer["meta_info"]["completion_tokens"]
        cached_tokens += answer["meta_info"]["cached_tokens"]
        check("cached", (answer["meta_info"]["cached_tokens"] > 100) == (i > 0), answer["meta_info"])
    families = scrape(server)
    grown = [after - start for after, start in zip(counts(families, "sglang:"), before)]
    check_equal("counters", grown, [prompt_tokens, output_tokens, cached_tokens, 3, 0])
    histogram(families, "sglang:time_to_first_token_seconds", 3)
    histogram(families, "sglang:e2e_request_latency_seconds", 3)
    for name, tokens in (("prompt_tokens_histogram", prompt_tokens), ("generation_tokens_histogram", output_tokens)):
        histogram(families, f"sglang:{name}", 3)
        sums = [sample.value for sample in families[f"sglang:{name}"].samples if sample.name.endswith("_sum")]
        check_equal(f"{name} adds up", sums, [tokens])
    check("hit rate", 0 < value(families, "sglang:cache_hit_rate") < 1)


def main():
    with Server("--enable-metrics", "--served-model-name", "tiny") as server:
        run(names_and_types, server, "sglang:", "tiny")
        run(numbers_add_up, server)
    with Server("--enable-metrics", "--metrics-prefix", "hadal:", "--served-model-name", "a \"b\" \\ c") as server:
        run(names_and_types, server, "hadal:", "a \"b\" \\ c")
    with Server() as server:
        check_equal("only when asked for", server.request("GET", "/metrics")[0], 404)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
