// Package prometheus lets Prometheus' own parser and engine judge the alerts and the dashboard that the chart ships.
package prometheus

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"
)

const (
	files = "../../../charts/pagoda/files"
	// Each series has a sample a minute, for an hour.
	lastMinute = 60
)

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Series of a cluster where all is well: under each of the alerts there are samples, and none of them fires.
const well = `load 1m
  pagoda_gateway_ready_pods{namespace="team",service="chat",pod="gateway-0"} 2x60
  pagoda_gateway_ready_pods{namespace="team",service="asleep",pod="gateway-0"} 0x60
  pagoda_gateway_held_requests{namespace="team",service="chat",pod="gateway-0"} 0x60
  pagoda_gateway_held_requests{namespace="team",service="asleep",pod="gateway-0"} 0x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="200",pod="gateway-0"} 0+600x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="502",pod="gateway-0"} 0+3x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="503",pod="gateway-0"} 7x60
  pagoda_gateway_requests_total{namespace="team",service="asleep",code="503",pod="gateway-0"} 7x60
  pagoda_gateway_cut_streams_total{namespace="team",service="chat",pod="gateway-0"} 2x60
  pagoda_gateway_watch_errors_total{kind="EndpointSlice",pod="gateway-0"} 4x60
  vllm:kv_cache_usage_perc{namespace="team",service="chat",pod="chat-0"} 0.95x60
  vllm:num_preemptions_total{namespace="team",service="chat",pod="chat-0"} 9x60
  pagoda_operator_leader{pod="operator-0"} 1x60
  pagoda_operator_leader{pod="operator-1"} 0x60
  pagoda_operator_reconciles_total{result="error"} 5x60
  pagoda_operator_reconciles_total{result="ok"} 0+90x60
  pagoda_operator_scrape_failures_total{target="pod"} 3x60
  up{job="pagoda-operator",pod="operator-0"} 1x60
  up{job="pagoda-gateway",pod="gateway-0"} 1x60
`

// What each alert is about: series in which it must fire, for as long as it wants before it does.
var sick = map[string]string{
	"PagodaServiceUnavailable": `load 1m
  pagoda_gateway_ready_pods{namespace="team",service="chat",pod="gateway-0"} 0x60
  pagoda_gateway_held_requests{namespace="team",service="chat",pod="gateway-0"} 3x60
`,
	"PagodaRequestsFailing": `load 1m
  pagoda_gateway_requests_total{namespace="team",service="chat",code="200",pod="gateway-0"} 0+60x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="502",pod="gateway-0"} 0+60x60
`,
	"PagodaHoldsFull": `load 1m
  pagoda_gateway_held_requests{namespace="team",service="chat",pod="gateway-0"} 1000x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="503",pod="gateway-0"} 0+60x60
`,
	"PagodaStreamsCut": `load 1m
  pagoda_gateway_cut_streams_total{namespace="team",service="chat",pod="gateway-0"} 0x54 1x5
`,
	"PagodaKvCachePressure": `load 1m
  vllm:kv_cache_usage_perc{namespace="team",service="chat",pod="chat-0"} 0.98x60
  vllm:num_preemptions_total{namespace="team",service="chat",pod="chat-0"} 0+2x60
`,
	"PagodaOperatorNotLeading": `load 1m
  pagoda_operator_leader{pod="operator-0"} 0x60
`,
	"PagodaReconcileErrors": `load 1m
  pagoda_operator_reconciles_total{result="error"} 0+1x60
`,
	"PagodaAutoscalerBlind": `load 1m
  pagoda_operator_scrape_failures_total{target="gateway"} 0+60x60
`,
	"PagodaGatewayWatchErrors": `load 1m
  pagoda_gateway_watch_errors_total{kind="EndpointSlice",pod="gateway-0"} 0+1x60
`,
	"PagodaPartDown": `load 1m
  up{job="pagoda-gateway",pod="gateway-0"} 0x60
`,
}

func TestEachAlertFiresForWhatItIsAboutAndForNothingElse(t *testing.T) {
	for _, alert := range alerts(t) {
		series, known := sick[alert.Alert]
		if !known {
			t.Errorf("no series say when %s fires", alert.Alert)
			continue
		}
		t.Run(alert.Alert, func(t *testing.T) {
			if !fires(t, series, alert) {
				t.Errorf("it does not fire for\n%s", series)
			}
			if fires(t, well, alert) {
				t.Error("it fires while all is well")
			}
		})
	}
	if len(sick) != len(alerts(t)) {
		t.Errorf("series for %d alerts, and there are %d", len(sick), len(alerts(t)))
	}
}

func TestTheOperatorThatIsNotThereAtAllIsNoticed(t *testing.T) {
	for _, alert := range alerts(t) {
		if alert.Alert == "PagodaOperatorNotLeading" && !fires(t, "load 1m\n  up{job=\"other\"} 1x60\n", alert) {
			t.Error("no series at all looks like a leader")
		}
	}
}

// The gateway holds requests for a while and then turns them away: both must count as being asked.
func TestAServiceWithoutPodsIsNoticedByRequestsThatWereTurnedAway(t *testing.T) {
	series := `load 1m
  pagoda_gateway_ready_pods{namespace="team",service="chat",pod="gateway-0"} 0x60
  pagoda_gateway_held_requests{namespace="team",service="chat",pod="gateway-0"} 0x60
  pagoda_gateway_requests_total{namespace="team",service="chat",code="504",pod="gateway-0"} 0+1x60
`
	for _, alert := range alerts(t) {
		if alert.Alert == "PagodaServiceUnavailable" && !fires(t, series, alert) {
			t.Error("it does not fire")
		}
	}
}

func TestEveryAlertSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	for _, alert := range alerts(t) {
		for _, key := range []string{"summary", "description"} {
			if len(alert.Annotations[key]) < 20 {
				t.Errorf("%s has no %s", alert.Alert, key)
			}
		}
		if severity := alert.Labels["severity"]; severity != "warning" && severity != "critical" {
			t.Errorf("%s has the severity %q", alert.Alert, severity)
		}
	}
}

func TestEveryQueryOfTheDashboardIsPromQL(t *testing.T) {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "dashboard.json"), &board); err != nil {
		t.Fatal(err)
	}
	queries := 0
	// What Grafana puts in for its variables.
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$service", ".*")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries++
			if _, err := parser.ParseExpr(grafana.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
			}
		}
	}
	if queries < 15 {
		t.Errorf("only %d queries", queries)
	}
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(read(t, "alerts.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var found []alert
	for _, group := range file.Groups {
		found = append(found, group.Rules...)
	}
	return found
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(files, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fires says whether the alert's expression holds in each of the minutes that it waits for, up to the last sample.
func fires(t *testing.T, series string, alert alert) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, series)
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	waits := time.Duration(0)
	if alert.For != "" {
		duration, err := model.ParseDuration(alert.For)
		if err != nil {
			t.Fatal(err)
		}
		waits = time.Duration(duration)
	}
	end := time.Unix(0, 0).Add(lastMinute * time.Minute)
	for at := end.Add(-waits); !at.After(end); at = at.Add(time.Minute) {
		query, err := engine.NewInstantQuery(context.Background(), storage, nil, alert.Expr, at)
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(context.Background()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		if len(vector) == 0 {
			return false
		}
	}
	return true
}
