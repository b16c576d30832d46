{{- /* Values that contradict one another: one of them would be without effect, or take another's place. */ -}}
{{- define "sluice.contradictions" -}}
{{- $v := .Values -}}
{{- $c := $v.webhook.certificate -}}
{{- $m := $v.metrics -}}
{{- range list
  (list "webhook.certificate.secretName" $c.secretName "webhook.certificate.mode" $c.mode "secret")
  (list "webhook.certificate.caBundle" $c.caBundle "webhook.certificate.mode" $c.mode "secret")
  (list "webhook.certificate.issuerRef" $c.issuerRef "webhook.certificate.mode" $c.mode "cert-manager")
  (list "metrics.certificateSecret" $m.certificateSecret "metrics.authentication" $m.authentication "kubernetes")
  (list "metrics.tokenSecret" $m.tokenSecret "metrics.authentication" $m.authentication "kubernetes") -}}
{{- if and (index . 1) (ne (index . 3) (index . 4)) -}}
{{- fail (printf "%s: needs %s %s, which is %s; accepted: both, or neither" (index . 0) (index . 2) (index . 4) (index . 3)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.dra.extendedResourceName (eq (toString $v.dra.enabled) "false") -}}
{{- fail "dra.extendedResourceName: needs dra.enabled true or auto, which is false; accepted: both, or neither" -}}
{{- end -}}
{{- if and $c.issuerRef (not (dig "name" "" $c.issuerRef)) -}}
{{- fail "webhook.certificate.issuerRef: has no name; accepted: {name: ..., kind: ClusterIssuer}, or {}" -}}
{{- end -}}
{{- if and $v.monitoring.serviceMonitor (eq $m.authentication "kubernetes") (not (and (dig "name" "" $m.tokenSecret) (dig "key" "" $m.tokenSecret))) -}}
{{- fail "metrics.tokenSecret: has no name or no key, and with metrics.authentication kubernetes Prometheus needs a token; accepted: {name: ..., key: token}" -}}
{{- end -}}
{{- if and (eq $v.scheduler.mode "own") (eq $v.scheduler.name "default-scheduler") -}}
{{- fail "scheduler.name: 'default-scheduler' is the cluster's own, and two schedulers would place its pods; accepted: another name, or scheduler.mode cluster" -}}
{{- end -}}
{{- $k := include "sluice.kubelet" . | fromYaml -}}
{{- $taken := dict -}}
{{- range list
  (list "kubelet's root folder" $k.root) (list "kubelet's folder of device plugins" $k.devicePlugins)
  (list "kubelet's pod-resources" $k.podResources) (list "kubelet's folder of pods" $k.pods)
  (list "node.hostDir" $v.node.hostDir) (list "node.runDir" $v.node.runDir) (list "node.cdiDir" $v.node.cdiDir) -}}
{{- $name := index . 0 -}}
{{- $other := get $taken (index . 1) -}}
{{- if and $other (contains "." $name) -}}
{{- fail (printf "%s: %s is also %s; accepted: a folder of its own" $name (index . 1) $other) -}}
{{- end -}}
{{- $_ := set $taken (index . 1) $name -}}
{{- end -}}
{{- end }}
