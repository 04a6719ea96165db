// Package objects is the table of InferenceServices that every judge is asked about.
package objects

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Case is one InferenceService, and what each judge must say of it.
type Case struct {
	// Name says what state the service is in.
	Name string `json:"name"`
	// ArgoCD is the health that Argo CD must show: Healthy, Progressing, Degraded or Suspended.
	ArgoCD string `json:"argocd"`
	// Says must stand in the message that Argo CD shows.
	Says string `json:"says"`
	// Flux is the status that kstatus must compute: Current, InProgress, Failed or Terminating.
	Flux string `json:"flux"`
	// Object is the service as the API server returns it.
	Object *unstructured.Unstructured `json:"-"`

	Metadata map[string]any `json:"metadata"`
	Spec     map[string]any `json:"spec"`
	Status   map[string]any `json:"status"`
}

// Cases reads the table.
func Cases(t *testing.T) []Case {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "objects", "inferenceservices.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []Case
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 10 {
		t.Fatalf("only %d cases", len(cases))
	}
	for i := range cases {
		cases[i].Object = object(t, &cases[i])
	}
	return cases
}

// object goes through the unstructured decoder, so that numbers are what a client of the API server sees.
func object(t *testing.T, c *Case) *unstructured.Unstructured {
	t.Helper()
	content := map[string]any{
		"apiVersion": "serving.pagoda.dev/v1alpha1",
		"kind":       "InferenceService",
		"metadata":   c.Metadata,
		"spec":       c.Spec,
	}
	if c.Status != nil {
		content["status"] = c.Status
	}
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	json, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	found := &unstructured.Unstructured{}
	if err := found.UnmarshalJSON(json); err != nil {
		t.Fatal(err)
	}
	return found
}
