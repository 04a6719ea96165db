package prometheus

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// The cluster of the end-to-end tests has no Prometheus operator, so its own types are asked instead: a field that they
// do not know is an error.
func TestMonitorsAndRulesAreWhatThePrometheusOperatorKnows(t *testing.T) {
	found := map[string]int{}
	for _, document := range bytes.Split(render(t), []byte("\n---\n")) {
		var meta struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			t.Fatal(err)
		}
		if meta.APIVersion != "monitoring.coreos.com/v1" {
			continue
		}
		found[meta.Kind]++
		switch meta.Kind {
		case "ServiceMonitor":
			var monitor monitoring.ServiceMonitor
			if err := yaml.UnmarshalStrict(document, &monitor); err != nil {
				t.Errorf("%v in\n%s", err, document)
			}
			if len(monitor.Spec.Endpoints) != 1 || monitor.Spec.Endpoints[0].Port == "" {
				t.Errorf("%s asks no port", monitor.Name)
			}
		case "PrometheusRule":
			var rule monitoring.PrometheusRule
			if err := yaml.UnmarshalStrict(document, &rule); err != nil {
				t.Errorf("%v in\n%s", err, document)
			}
			if len(rule.Spec.Groups) == 0 {
				t.Error("a rule without groups")
			}
		default:
			t.Errorf("a %s", meta.Kind)
		}
	}
	if found["ServiceMonitor"] != 3 || found["PrometheusRule"] != 2 {
		t.Errorf("the chart renders %v", found)
	}
}

func render(t *testing.T) []byte {
	t.Helper()
	helm := os.Getenv("PAGODA_HELM")
	if helm == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		helm = filepath.Join(home, ".cache/pagoda/bin/helm")
	}
	command := exec.Command(helm, "template", "pagoda", "../../../charts/pagoda", "--kube-version", "1.34.2",
		"--set", "serviceMonitors.enabled=true,serviceMonitors.labels.release=prometheus,prometheusRules.enabled=true")
	var said bytes.Buffer
	command.Stderr = &said
	text, err := command.Output()
	if err != nil {
		t.Fatalf("helm (PAGODA_HELM; `pagoda-e2e cluster programs` builds it): %v: %s", err, said.String())
	}
	return text
}
