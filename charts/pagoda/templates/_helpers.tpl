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
{{- range list "watchNamespaces" "modelCache" "podDisruptionBudgets" "networkPolicies" "serviceMonitors" "prometheusRules" "grafanaDashboard" }}
{{- if not (hasKey $.Values .) }}
{{- fail (printf "the value %s is missing: upgrade with --reset-then-reuse-values instead of --reuse-values, so that this version's defaults count" .) }}
{{- end }}
{{- end }}
{{- if and .Values.watchNamespaces (dig "watchNamespace" "" .Values.operator) }}
{{- fail "operator.watchNamespace is the former name of watchNamespaces: set watchNamespaces alone" }}
{{- end }}
{{- end }}
