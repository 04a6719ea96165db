{{- define "pagoda.image" -}}
{{- $tag := .image.tag | default .chart.AppVersion -}}
{{ .image.repository }}:{{ $tag }}
{{- end }}

{{- define "pagoda.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: pagoda
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* What tells the pods of a part from all others. Never a version: a selector cannot be changed by an upgrade. */}}
{{- define "pagoda.selector" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: pagoda
{{- end }}

{{- define "pagoda.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pagoda.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pagoda.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Namespaces to look after, joined by commas; empty for all. operator.watchNamespace is the name that chart 0.1.0 gave to a single one. */}}
{{- define "pagoda.watchNamespaces" -}}
{{- $former := dig "watchNamespace" "" .Values.operator -}}
{{- join "," (.Values.watchNamespaces | default (compact (list $former)) | uniq) -}}
{{- end }}

{{- /* What the schema cannot say. Included first by every template that reads a value which 0.1.0 had not: helm upgrade
--reuse-values leaves out the defaults of such values. */}}
{{- define "pagoda.checks" -}}
{{- range list "watchNamespaces" "prometheus" "modelCache" "metricsApi" "keda" "podDisruptionBudgets" "networkPolicies" "serviceMonitors" "prometheusRules" "grafanaDashboard" }}
{{- if not (hasKey $.Values .) }}
{{- fail (printf "the value %s is missing: upgrade with --reset-then-reuse-values instead of --reuse-values, so that this version's defaults count" .) }}
{{- end }}
{{- end }}
{{- $servers := list }}
{{- range .Values.prometheus.servers }}
{{- if has .name $servers }}
{{- fail (printf "prometheus.servers: two servers are named %s" .name) }}
{{- end }}
{{- $servers = append $servers .name }}
{{- end }}
{{- if and .Values.watchNamespaces (dig "watchNamespace" "" .Values.operator) }}
{{- fail "operator.watchNamespace is the former name of watchNamespaces: set watchNamespaces alone" }}
{{- end }}
{{- end }}

{{- /* The operator's --prometheus-config, as JSON. Files of a server are mounted under its name. */}}
{{- define "pagoda.prometheusServers" -}}
{{- $servers := list -}}
{{- range .Values.prometheus.servers -}}
{{- $folder := printf "/etc/pagoda/prometheus/%s" .name -}}
{{- $server := dict "name" .name "url" .url -}}
{{- if .ca }}{{ $_ := set $server "caFile" (printf "%s/ca.crt" $folder) }}{{ end -}}
{{- if .bearerToken }}{{ $_ := set $server "bearerTokenFile" (printf "%s/token" $folder) }}{{ end -}}
{{- if .basicAuth }}{{ $_ := set $server "basicAuth" (dict "usernameFile" (printf "%s/username" $folder) "passwordFile" (printf "%s/password" $folder)) }}{{ end -}}
{{- if .timeoutSeconds }}{{ $_ := set $server "timeoutSeconds" (int .timeoutSeconds) }}{{ end -}}
{{- if .allowedNamespaces }}{{ $_ := set $server "allowedNamespaces" .allowedNamespaces }}{{ end -}}
{{- $servers = append $servers $server -}}
{{- end -}}
{{- dict "servers" $servers | toJson -}}
{{- end }}

{{- /* One volume of all that the Prometheus servers need: where they are, and what is secret, each server's in a folder of its own. */}}
{{- define "pagoda.prometheusVolume" -}}
- name: prometheus
  projected:
    sources:
      - configMap: {name: pagoda-prometheus-servers}
      {{- range .Values.prometheus.servers }}
      {{- $folder := .name }}
      {{- with .ca }}
      - {{ ternary "configMap" "secret" (hasKey . "configMap") }}:
          name: {{ .configMap | default .secret }}
          items: [{key: {{ .key }}, path: {{ $folder }}/ca.crt}]
      {{- end }}
      {{- with .bearerToken }}
      - secret:
          name: {{ .secret }}
          items: [{key: {{ .key }}, path: {{ $folder }}/token}]
      {{- end }}
      {{- with .basicAuth }}
      - secret:
          name: {{ .secret }}
          items: [{key: {{ .usernameKey }}, path: {{ $folder }}/username}, {key: {{ .passwordKey }}, path: {{ $folder }}/password}]
      {{- end }}
      {{- end }}
{{- end }}
