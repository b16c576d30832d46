{{- define "sluice.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "sluice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sluice.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ include "sluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sluice.image" -}}
{{- $i := .Values.image -}}
{{- if $i.registry }}{{ $i.registry }}/{{ end }}{{ $i.repository }}
{{- if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "sluice.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* No privilege without a reason; docs/operate/security.md gives the reasons. */ -}}
{{- define "sluice.locked" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* "true" where the node's pod must open the cards' device nodes without help by NVIDIA's runtime. */ -}}
{{- define "sluice.opensCards" -}}
{{- $d := .Values.driver -}}
{{- if or (eq $d.access "own") (and (eq $d.access "nvidia-cdi") $d.root (not $d.runtimeClassName)) }}true{{ end }}
{{- end }}

{{- define "sluice.privileged" -}}
{{- $d := .Values.driver -}}
{{- if and (include "sluice.opensCards" .) (or (eq $d.privileged "always") (and (eq $d.privileged "auto") (not $d.deviceRoot))) }}true{{ end }}
{{- end }}

{{- define "sluice.nodeLocked" -}}
{{- if include "sluice.privileged" . -}}
privileged: true
readOnlyRootFilesystem: true
{{- else }}
{{- include "sluice.locked" . }}
{{- end }}
{{- end }}

{{- define "sluice.nodeAffinity" -}}
{{- if ne .Values.node.affinity "none" }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- if eq .Values.node.affinity "gpu-operator" }}
        - matchExpressions: [{key: nvidia.com/gpu.present, operator: In, values: ["true"]}]
        {{- else }}
        - matchExpressions: [{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}]
        {{- end }}
{{- end }}
{{- end }}

{{- /* "true" if the DRA driver serves the nodes instead of the device plugin. */ -}}
{{- define "sluice.dra" -}}
{{- $served := and (.Capabilities.APIVersions.Has "resource.k8s.io/v1") (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- if or (eq (toString .Values.dra.enabled) "true") (and (eq (toString .Values.dra.enabled) "auto") $served) }}true{{ end -}}
{{- end }}

{{- /* "true" if the webhook makes claims of annotations. */ -}}
{{- define "sluice.shareByClaims" -}}
{{- $annotations := toString .Values.dra.annotations -}}
{{- if or (eq $annotations "true") (and (eq $annotations "auto") (include "sluice.dra" .)) }}true{{ end -}}
{{- end }}

{{- /* "true" if the extender scores nodes for pods with claims. */ -}}
{{- define "sluice.schedulerClaims" -}}
{{- $claims := toString .Values.scheduler.claims -}}
{{- if or (eq $claims "true") (and (eq $claims "auto") (include "sluice.dra" .)) }}true{{ end -}}
{{- end }}

{{- /* The Secret with the webhook's certificate. */ -}}
{{- define "sluice.certificateSecret" -}}
{{- if eq .Values.webhook.certificate.mode "secret" -}}
{{- required "webhook.certificate.secretName: missing; accepted: the name of a kubernetes.io/tls Secret in the release's namespace" .Values.webhook.certificate.secretName -}}
{{- else -}}
{{- include "sluice.fullname" . }}-webhook-tls
{{- end -}}
{{- end }}

{{- /* Variables and volumes that plugin and agent share. */ -}}
{{- define "sluice.nodeEnv" -}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- if ne .Values.driver.access "own" }}
# If this pod runs under NVIDIA's runtime, these bring NVML and all cards, for reading; other runtimes ignore them.
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end }}
{{- with .Values.node.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sluice.nodeMounts" -}}
- {name: config, mountPath: /etc/sluice, readOnly: true}
- {name: host, mountPath: {{ .Values.node.hostDir | quote }}}
- {name: run, mountPath: {{ .Values.node.runDir | quote }}}
- {name: pod-resources, mountPath: {{ (include "sluice.kubelet" . | fromYaml).podResources | quote }}, readOnly: true}
{{- if .Values.driver.root }}
- {name: driver, mountPath: {{ .Values.driver.root | quote }}, readOnly: true}
{{- end }}
{{- with .Values.node.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sluice.configHash" -}}
{{- include (print .Template.BasePath "/configmap.yaml") . | sha256sum -}}
{{- end }}

{{- /* The CEL condition under which the API server calls the webhook. The webhook prints it (files/conditions.yaml is the output of
`sluice-webhook --print-policy conditions`; a test holds them equal). */ -}}
{{- define "sluice.condition" -}}
{{- $all := .root.Files.Get "files/conditions.yaml" | fromYaml -}}
{{- index $all (ternary "withAliases" "withoutAliases" .root.Values.webhook.aliases) .name -}}
{{- end }}

{{- define "sluice.caBundle" -}}
{{- if and (eq .Values.webhook.certificate.mode "secret") .Values.webhook.certificate.caBundle }}
caBundle: {{ .Values.webhook.certificate.caBundle | quote }}
{{- else if eq .Values.webhook.certificate.mode "helm" }}
caBundle: {{ index (include "sluice.helmCertificate" . | fromYaml) "ca.crt" }}
{{- end }}
{{- end }}

{{- /* Mode helm: one certificate for all templates of a render. If the release already has one in the cluster, it is reused, so that
certificate and CA match after upgrades. */ -}}
{{- define "sluice.helmCertificate" -}}
{{- $c := .Values.webhook.certificate -}}
{{- if not (hasKey $c "made") -}}
{{- $old := lookup "v1" "Secret" .Release.Namespace (include "sluice.certificateSecret" .) -}}
{{- if and $old $old.data (hasKey $old.data "ca.crt") -}}
{{- $_ := set $c "made" (dict "ca.crt" (index $old.data "ca.crt") "tls.crt" (index $old.data "tls.crt") "tls.key" (index $old.data "tls.key")) -}}
{{- else -}}
{{- $dns := printf "%s-webhook.%s.svc" (include "sluice.fullname" .) .Release.Namespace -}}
{{- $ca := genCA (printf "%s-ca" (include "sluice.fullname" .)) 3650 -}}
{{- $leaf := genSignedCert $dns nil (list $dns) 3650 $ca -}}
{{- $_ := set $c "made" (dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($leaf.Cert | b64enc) "tls.key" ($leaf.Key | b64enc)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $c.made -}}
{{- end }}
