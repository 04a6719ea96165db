// Package flux asks kstatus, the library by which Flux judges objects, what it makes of InferenceServices.
package flux

import (
	"testing"

	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"serving.pagoda.dev/e2e/judges/objects"
)

func TestKstatusJudgesEachServiceAsItsCaseSays(t *testing.T) {
	for _, c := range objects.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			result, err := status.Compute(c.Object)
			if err != nil {
				t.Fatal(err)
			}
			if string(result.Status) != c.Flux {
				t.Errorf("kstatus says %s (%s), want %s", result.Status, result.Message, c.Flux)
			}
		})
	}
}
