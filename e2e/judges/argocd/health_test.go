// Package argocd runs the health check that charts/argocd ships in the interpreter that Argo CD runs it in, with no
// more of Lua's libraries than Argo CD opens for a custom check.
package argocd

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"

	"serving.pagoda.dev/e2e/judges/objects"
)

const folder = "../../../charts/argocd"

// What Argo CD accepts as a health.
var known = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

func TestTheHealthCheckJudgesEachServiceAsItsCaseSays(t *testing.T) {
	script := read(t, "health.lua")
	for _, c := range objects.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			status, message := judge(t, script, c.Object.Object)
			if status != c.ArgoCD {
				t.Errorf("the check says %s (%s), want %s", status, message, c.ArgoCD)
			}
			if !strings.Contains(message, c.Says) {
				t.Errorf("the message is %q, which does not contain %q", message, c.Says)
			}
		})
	}
}

func TestTheSnippetForArgocdCmCarriesTheSameScript(t *testing.T) {
	var configMap struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
	}
	if err := yaml.Unmarshal([]byte(read(t, "argocd-cm.yaml")), &configMap); err != nil {
		t.Fatal(err)
	}
	key := "resource.customizations.health.serving.pagoda.dev_InferenceService"
	if configMap.Kind != "ConfigMap" || configMap.Metadata.Name != "argocd-cm" {
		t.Errorf("it is a %s called %s", configMap.Kind, configMap.Metadata.Name)
	}
	if configMap.Data[key] != read(t, "health.lua") {
		t.Errorf("%s differs from health.lua", key)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// judge does what Argo CD's VM.ExecuteHealthLua does: the object is the global obj, and the script returns a table.
func judge(t *testing.T, script string, object map[string]any) (status, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returned %s, not a table", state.Get(-1).Type())
	}
	status, message = table.RawGetString("status").String(), table.RawGetString("message").String()
	if !slices.Contains(known, status) {
		t.Fatalf("Argo CD knows no health called %q", status)
	}
	return status, message
}

// value turns decoded JSON into Lua, as the library that Argo CD uses does.
func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case bool:
		return lua.LBool(from)
	case float64:
		return lua.LNumber(from)
	case int64:
		return lua.LNumber(from)
	case string:
		return lua.LString(from)
	case []any:
		list := state.CreateTable(len(from), 0)
		for _, item := range from {
			list.Append(value(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(from))
		for key, item := range from {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}
