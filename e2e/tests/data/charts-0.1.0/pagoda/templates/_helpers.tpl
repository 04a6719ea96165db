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
