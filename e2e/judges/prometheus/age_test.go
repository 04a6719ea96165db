package prometheus

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"
)

// The operator asks for the age of what a query stands on in these words (operator/controller/src/prometheus/selectors.rs):
// the engine must take them, and name the older of two series, also of two that have no labels.
func TestTheAgeOfAQueryIsThatOfTheOldestSeriesInIt(t *testing.T) {
	storage := promqltest.LoadedStorage(t, `load 1m
  x{pod="a"} 1x10
  x{pod="b"} 1x8
  y 1x7
`)
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	for query, expected := range map[string]float64{
		`min(timestamp(x))`:          480,
		`min(timestamp(x{pod="a"}))`: 600,
		`min(label_replace(min(timestamp(x)),"selector","0","","") or label_replace(min(timestamp(y)),"selector","1","",""))`:             420,
		`min(label_replace(min(timestamp(x{pod="a"})),"selector","0","","") or label_replace(min(timestamp(gone)),"selector","1","",""))`: 600,
	} {
		query, err := engine.NewInstantQuery(context.Background(), storage, nil, query, time.Unix(630, 0))
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(context.Background()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		if len(vector) != 1 || vector[0].F != expected {
			t.Errorf("%s is %v instead of %v", query, vector, expected)
		}
	}
}
