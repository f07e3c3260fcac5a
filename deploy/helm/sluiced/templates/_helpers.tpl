{{/* The name of everything: that of the release, which names the program already or is put before it. */}}
{{- define "sluiced.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sluiced.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluiced.labels" -}}
{{ include "sluiced.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Seconds: the length service.grace of the configuration is added to a date and taken from it again. */}}
{{- define "sluiced.timeToStop" -}}
{{- $service := get (fromToml .Values.config) "service" | default dict -}}
{{- $begin := toDate "2006-01-02" "2026-01-01" -}}
{{- $end := mustDateModify (get $service "grace" | default "20s") $begin -}}
{{- sub (unixEpoch $end) (unixEpoch $begin) | add 25 -}}
{{- end -}}
