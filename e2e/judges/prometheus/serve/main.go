// Command serve is a Prometheus without scraping: its own time series database, query engine and HTTP API over series that
// are told to it, so that tests decide what is known and since when.
//
// It listens at the address that is its argument, or at a free port of this machine, prints which, and then reads commands from standard input, one a line, each answered by "ok" or an error:
//
//	set 3.5 name{label="value"}   the series has this value from now on: a sample each half second
//	stop name{label="value"}      no further sample comes, as when whoever pushes it has died
//	end name{label="value"}       the series ends with a staleness marker, as when a target has gone
//
// It ends with its standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
	v1 "github.com/prometheus/prometheus/web/api/v1"
)

const (
	sampleEvery = 500 * time.Millisecond
	maxSamples  = 1_000_000
	// As a Prometheus has it that is not told otherwise.
	lookback = 5 * time.Minute
	timeout  = 30 * time.Second
)

// series are those that go on, by their names.
type series struct {
	mutex   sync.Mutex
	db      *tsdb.DB
	current map[string]float64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	folder, err := os.MkdirTemp("", "pagoda-prometheus-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	db, err := tsdb.Open(folder, slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: api(db), ReadHeaderTimeout: timeout}
	go server.Serve(listener)
	defer server.Close()
	fmt.Println(listener.Addr())
	all := &series{db: db, current: map[string]float64{}}
	go func() {
		for range time.Tick(sampleEvery) {
			if err := all.sample(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := all.obey(lines.Text()); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
	return lines.Err()
}

// api is Prometheus' own, of which the parts that ask for more than the database are never called.
func api(db *tsdb.DB) http.Handler {
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:           maxSamples,
		Timeout:              timeout,
		LookbackDelta:        lookback,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
	})
	ready := func(f http.HandlerFunc) http.HandlerFunc { return f }
	registry := prometheus.NewRegistry()
	api := v1.NewAPI(engine, db, nil, db, nil, nil, nil, func() config.Config { return config.Config{} }, nil,
		v1.GlobalURLOptions{}, ready, nil, "", false, slog.New(slog.DiscardHandler), nil, 0, 0, 0, false, nil, nil, nil, nil,
		nil, registry, registry, v1.DefaultStatsRenderer, false, nil, false, false, false, false)
	router := route.New()
	api.Register(router)
	return http.StripPrefix("/api/v1", router)
}

func (s *series) obey(line string) error {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "set":
		number, name, _ := strings.Cut(rest, " ")
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return err
		}
		if _, err := parser.ParseMetric(name); err != nil {
			return err
		}
		s.mutex.Lock()
		s.current[name] = value
		s.mutex.Unlock()
		return s.sample()
	case "stop", "end":
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.current, rest)
		if command == "stop" {
			return nil
		}
		return s.append(map[string]float64{rest: math.Float64frombits(value.StaleNaN)})
	}
	return fmt.Errorf("no such command: %q", line)
}

func (s *series) sample() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.append(s.current)
}

func (s *series) append(values map[string]float64) error {
	appender := s.db.Appender(context.Background())
	now := time.Now().UnixMilli()
	for name, value := range values {
		var metric labels.Labels
		metric, err := parser.ParseMetric(name)
		if err == nil {
			_, err = appender.Append(0, metric, now, value)
		}
		if err != nil {
			appender.Rollback()
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return appender.Commit()
}
