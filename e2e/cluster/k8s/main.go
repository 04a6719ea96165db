// Command kubernetes is a whole Kubernetes node and control plane in one program: the first argument (or the name
// it is called by, through a symbolic link) says which part of it to be. One program links the shared packages once,
// so it takes one build of minutes instead of six, and 130 MB on disk instead of 600.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// Flags, JSON logging and client metrics register themselves, as in the upstream main packages.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// part runs one component with os.Args already shifted to it and returns its exit code.
type part func() int

var parts = map[string]part{
	"apiserver":          component(apiserver.NewAPIServerCommand),
	"controller-manager": component(controllermanager.NewControllerManagerCommand),
	"scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":            component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"proxy":              component(proxy.NewProxyCommand),
	"etcd":               func() int { etcdmain.Main(os.Args); return 0 },
	"kubectl":            runKubectl,
}

func component(command func() *cobra.Command) part {
	return func() int { return cli.Run(command()) }
}

// runKubectl leaves printing to CheckErr, as upstream's main does: kubectl words API errors in its own way.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func main() {
	// Called through a link named after a part, the program is that part; else the first argument names it.
	if run, ok := parts[filepath.Base(os.Args[0])]; ok {
		os.Exit(run())
	}
	if len(os.Args) > 1 {
		if run, ok := parts[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			os.Exit(run())
		}
	}
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: kubernetes %s [flags]\n", strings.Join(names, "|"))
	os.Exit(2)
}
