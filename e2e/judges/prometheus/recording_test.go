package prometheus

import (
	"context"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"
)

type recording struct {
	Record string `json:"record"`
	Expr   string `json:"expr"`
}

// One service with two gateways and two pods, and another that is at rest. A sample each 15 seconds, for 10 minutes.
const traffic = `load 15s
  pagoda_gateway_in_flight_requests{namespace="team",service="chat",pod="gateway-0"} 7x40
  pagoda_gateway_in_flight_requests{namespace="team",service="chat",pod="gateway-1"} 2x40
  pagoda_gateway_held_requests{namespace="team",service="chat",pod="gateway-0"} 3x40
  pagoda_gateway_held_requests{namespace="team",service="asleep",pod="gateway-0"} 4x40
  pagoda_gateway_requests_total{namespace="team",service="chat",code="200",pod="gateway-0"} 0+30x40
  pagoda_gateway_requests_total{namespace="team",service="chat",code="503",pod="gateway-1"} 0+15x40
  pagoda_gateway_time_to_first_byte_seconds_bucket{namespace="team",service="chat",le="1",pod="gateway-0"} 0+30x40
  pagoda_gateway_time_to_first_byte_seconds_bucket{namespace="team",service="chat",le="+Inf",pod="gateway-0"} 0+30x40
  pagoda_gateway_time_to_first_byte_seconds_count{namespace="team",service="chat",pod="gateway-0"} 0+30x40
  vllm:num_requests_waiting{namespace="team",service="chat",pod="chat-0"} 5x40
  vllm:num_requests_waiting{namespace="team",service="chat",pod="chat-1"} 6x40
  vllm:generation_tokens_total{namespace="team",service="chat",pod="chat-0"} 0+1500x40
  vllm:generation_tokens_total{namespace="team",service="chat",pod="chat-1"} 0+750x40
  vllm:kv_cache_usage_perc{namespace="team",service="chat",pod="chat-0"} 0.5x40
  vllm:kv_cache_usage_perc{namespace="team",service="chat",pod="chat-1"} 0.9x40
  vllm:prefix_cache_hits_total{namespace="team",service="chat",pod="chat-0"} 0+30x40
  vllm:prefix_cache_queries_total{namespace="team",service="chat",pod="chat-0"} 0+120x40
  vllm:prefix_cache_hits_total{namespace="team",service="idle",pod="idle-0"} 9x40
  vllm:prefix_cache_queries_total{namespace="team",service="idle",pod="idle-0"} 9x40
  vllm:time_to_first_token_seconds_bucket{namespace="team",service="chat",le="0.5",pod="chat-0"} 0+30x40
  vllm:time_to_first_token_seconds_bucket{namespace="team",service="chat",le="+Inf",pod="chat-0"} 0+30x40
  vllm:time_to_first_token_seconds_count{namespace="team",service="chat",pod="chat-0"} 0+30x40
  vllm:time_to_first_token_seconds_bucket{namespace="team",service="idle",le="0.5",pod="idle-0"} 9x40
  vllm:time_to_first_token_seconds_bucket{namespace="team",service="idle",le="+Inf",pod="idle-0"} 9x40
  vllm:time_to_first_token_seconds_count{namespace="team",service="idle",pod="idle-0"} 9x40
  vllm:inter_token_latency_seconds_bucket{namespace="team",service="chat",le="0.04",pod="chat-0"} 0+30x40
  vllm:inter_token_latency_seconds_bucket{namespace="team",service="chat",le="+Inf",pod="chat-0"} 0+30x40
  vllm:inter_token_latency_seconds_count{namespace="team",service="chat",pod="chat-0"} 0+30x40
`

// What each rule must say of each service; of a service that is not named, nothing.
var figures = map[string]map[string]float64{
	"pagoda:in_flight_requests:sum":          {"chat": 12, "asleep": 4},
	"pagoda:queued_requests:sum":             {"chat": 14, "asleep": 4},
	"pagoda:requests:rate1m":                 {"chat": 3},
	"pagoda:generated_tokens:rate1m":         {"chat": 150},
	"pagoda:kv_cache_usage:avg":              {"chat": 0.7},
	"pagoda:time_to_first_token_seconds:p95": {"chat": 0.475, "idle": 0},
	"pagoda:time_to_first_token_seconds:p50": {"chat": 0.25, "idle": 0},
	"pagoda:time_to_first_byte_seconds:p95":  {"chat": 0.95},
	"pagoda:inter_token_seconds:p95":         {"chat": 0.038},
	"pagoda:prefix_cache_hits:ratio5m":       {"chat": 0.25},
}

func TestEachRecordingRuleIsOneFigureForEachServiceThatHasIt(t *testing.T) {
	rules := recordings(t)
	for _, rule := range rules {
		expected, known := figures[rule.Record]
		if !known {
			t.Errorf("nothing says what %s should be", rule.Record)
			continue
		}
		found := evaluate(t, rule.Expr)
		if len(found) != len(expected) {
			t.Errorf("%s is %v instead of %v", rule.Record, found, expected)
		}
		for service, value := range expected {
			if got, there := found[service]; !there || math.Abs(got-value) > 1e-9 {
				t.Errorf("%s of %s is %v instead of %v", rule.Record, service, got, value)
			}
		}
	}
	if len(rules) != len(figures) {
		t.Errorf("figures for %d rules, and there are %d", len(figures), len(rules))
	}
}

func TestAServiceTakesItsFigureWithAPlainSelector(t *testing.T) {
	name := regexp.MustCompile(`^pagoda:[a-z_]+:[a-z0-9]+$`)
	for _, rule := range recordings(t) {
		if !name.MatchString(rule.Record) {
			t.Errorf("%s is no name of a recording rule", rule.Record)
		}
		expr, err := parser.ParseExpr(rule.Record + `{namespace="team",service="chat"}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, plain := expr.(*parser.VectorSelector); !plain {
			t.Errorf("%s is no plain selector", rule.Record)
		}
	}
}

func recordings(t *testing.T) []recording {
	t.Helper()
	var file struct {
		Groups []struct {
			Name     string      `json:"name"`
			Interval string      `json:"interval"`
			Rules    []recording `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(read(t, "recording-rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var found []recording
	for _, group := range file.Groups {
		found = append(found, group.Rules...)
	}
	return found
}

// The figure of each service after ten minutes.
func evaluate(t *testing.T, expr string) map[string]float64 {
	t.Helper()
	storage := promqltest.LoadedStorage(t, traffic)
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query, err := engine.NewInstantQuery(context.Background(), storage, nil, expr, time.Unix(600, 0))
	if err != nil {
		t.Fatalf("%s: %v", strings.TrimSpace(expr), err)
	}
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, sample := range vector {
		if sample.Metric.Get("namespace") != "team" {
			t.Errorf("a series without its namespace: %v", sample.Metric)
		}
		service := sample.Metric.Get("service")
		if _, twice := found[service]; twice || len(service) == 0 || sample.Metric.Len() != 2 {
			t.Errorf("more or less than one series for each service: %v", sample.Metric)
		}
		found[service] = sample.F
	}
	return found
}
