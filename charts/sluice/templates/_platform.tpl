{{- /* What differs between clusters: paths, ids, selectors, versions, ports. */ -}}

{{- define "sluice.platform" -}}
{{- $all := .Files.Get "files/platforms.yaml" | fromYaml -}}
{{- dig .Values.platform dict $all | toYaml -}}
{{- end }}

{{- /* Kubelet's folders, as YAML: root, devicePlugins, podResources, pods. Kubelet keeps device-plugins at /var/lib/kubelet whatever
its --root-dir is. */ -}}
{{- define "sluice.kubelet" -}}
{{- $p := include "sluice.platform" . | fromYaml -}}
{{- $k := .Values.kubelet -}}
{{- $old := .Values.node.kubeletDir -}}
{{- if and $old $k.rootDir (ne $old $k.rootDir) -}}
{{- fail (printf "node.kubeletDir: %s contradicts kubelet.rootDir, %s; accepted: kubelet.rootDir alone" $old $k.rootDir) -}}
{{- end -}}
{{- $root := $k.rootDir | default $old | default $p.kubeletRootDir | default "/var/lib/kubelet" -}}
root: {{ $root | quote }}
devicePlugins: {{ $k.devicePluginDir | default $p.devicePluginDir | default "/var/lib/kubelet/device-plugins" | quote }}
podResources: {{ $k.podResourcesDir | default (printf "%s/pod-resources" $root) | quote }}
pods: {{ $k.podsDir | default (printf "%s/pods" $root) | quote }}
{{- end }}

{{- /* As YAML {dirs: [...]}: folders with others' CDI specs, without ours. */ -}}
{{- define "sluice.cdiSearchDirs" -}}
{{- $p := include "sluice.platform" . | fromYaml -}}
{{- $dirs := .Values.node.cdiSearchDirs -}}
{{- if and (hasKey $p "cdiSearchDirs") (eq ($dirs | toJson) `["/etc/cdi"]`) }}{{ $dirs = $p.cdiSearchDirs }}{{ end -}}
dirs: {{ without $dirs .Values.node.cdiDir | uniq | toJson }}
{{- end }}

{{- /* Call with (list . selector): the images are for Linux; a selector of the values wins. */ -}}
{{- define "sluice.nodeSelector" -}}
nodeSelector: {{- merge (deepCopy (index . 1 | default dict)) (dict "kubernetes.io/os" "linux") | toYaml | nindent 2 }}
{{- end }}

{{- /* Call with (list . podSecurityContext): without ids where the cluster gives them. */ -}}
{{- define "sluice.podSecurityContext" -}}
{{- $c := deepCopy (index . 1 | default dict) -}}
{{- range $key, $value := $c }}{{ if kindIs "invalid" $value }}{{ $_ := unset $c $key }}{{ end }}{{ end -}}
{{- if (include "sluice.platform" (index . 0) | fromYaml).assignsIds -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- if eq (int (dig . 0 $c)) 65532 }}{{ $_ := unset $c . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $c -}}
securityContext: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{- /* The namespaces for which the API server calls the webhooks. An expression without values is none. */ -}}
{{- define "sluice.namespaceSelector" -}}
{{- $s := deepCopy (.Values.webhook.namespaceSelector | default dict) -}}
{{- $e := list -}}
{{- with .Values.webhook.excludedNamespaces -}}
{{- $e = append $e (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" .) -}}
{{- end -}}
{{- range concat ($s.matchExpressions | default list) ((include "sluice.platform" . | fromYaml).namespaceExpressions | default list) -}}
{{- if not (has . $e) }}{{ $e = append $e . }}{{ end -}}
{{- end -}}
{{- $out := dict -}}
{{- with $e }}{{ $_ := set $out "matchExpressions" . }}{{ end -}}
{{- with $s.matchLabels }}{{ $_ := set $out "matchLabels" . }}{{ end -}}
{{- toYaml $out -}}
{{- end }}

{{- define "sluice.webhookAnnotations" -}}
{{- $a := deepCopy ((include "sluice.platform" . | fromYaml).webhookAnnotations | default dict) -}}
{{- if eq .Values.webhook.certificate.mode "cert-manager" -}}
{{- $_ := set $a "cert-manager.io/inject-ca-from" (printf "%s/%s-webhook" .Release.Namespace (include "sluice.fullname" .)) -}}
{{- end -}}
{{- with mergeOverwrite $a (deepCopy (.Values.webhook.annotations | default dict)) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{- /* The tag of kube-scheduler's image: the cluster's version without a distribution's suffix (v1.34.4+k3s1,
v1.34.4-gke.5). Argo CD gives major and minor alone, with or without v; each minor version has a patch 0. */ -}}
{{- define "sluice.schedulerImage" -}}
{{- $i := .Values.scheduler.image -}}
{{- $i.repository -}}
{{- if $i.digest -}}
@{{ $i.digest }}
{{- else if $i.tag -}}
:{{ $i.tag }}
{{- else -}}
{{- $version := .Capabilities.KubeVersion.Version | default "" | toString -}}
{{- $found := regexFind "^v?[0-9]+[.][0-9]+([.][0-9]+)?" $version | trimPrefix "v" -}}
{{- if not $found -}}
{{- fail (printf "scheduler.image.tag: missing, and the cluster's version, %q, is no vMAJOR.MINOR.PATCH; accepted: a tag of %s, as v1.34.0" $version $i.repository) -}}
{{- end -}}
:v{{ $found }}{{ if eq (len (splitList "." $found)) 2 }}.0{{ end -}}
{{- end -}}
{{- end }}

{{- /* Ports that something else uses in the same network: (list where value-name port). */ -}}
{{- define "sluice.ports" -}}
{{- $v := .Values -}}
{{- $node := list (list "devicePlugin.port" $v.devicePlugin.port) (list "agent.port" $v.agent.port) -}}
{{- $webhook := list (list "webhook.port" $v.webhook.port) (list "webhook.metricsPort" $v.webhook.metricsPort) -}}
{{- $scheduler := list (list "scheduler.port" $v.scheduler.port) (list "scheduler.metricsPort" $v.scheduler.metricsPort) -}}
{{- $host := list
  (list "kubelet's" 10250) (list "kubelet's" 10248) (list "kubelet's" 10255) (list "kube-proxy's" 10249) (list "kube-proxy's" 10256) -}}
{{- $control := list
  (list "kube-scheduler's" 10259) (list "kube-controller-manager's" 10257) (list "kube-apiserver's" 6443) (list "etcd's" 2379) (list "etcd's" 2380) -}}
{{- if $v.webhook.hostNetwork }}{{ $webhook = concat $webhook $host $control }}{{ end -}}
{{- if $v.scheduler.volcano.enabled }}{{ $scheduler = append $scheduler (list "scheduler.volcano.port" $v.scheduler.volcano.port) }}{{ end -}}
{{- if eq $v.scheduler.mode "own" }}{{ $scheduler = append $scheduler (list "kube-scheduler's" 10259) }}{{ end -}}
{{- if eq $v.scheduler.mode "cluster" -}}
{{- $scheduler = concat $scheduler $host $control -}}
{{- if $v.webhook.hostNetwork }}{{ $webhook = concat $scheduler $webhook }}{{ end -}}
{{- end -}}
{{- range list $node $webhook $scheduler -}}
{{- $taken := dict -}}
{{- range . -}}
{{- $port := int (index . 1) | toString -}}
{{- $other := get $taken $port -}}
{{- if and $other (contains "." (print $other (index . 0))) -}}
{{- fail (printf "%s: %s is also %s; accepted: two different ports, since both listen in one network" $other $port (index . 0)) -}}
{{- end -}}
{{- $_ := set $taken $port (index . 0) -}}
{{- end -}}
{{- end -}}
{{- range list
  (list "devicePlugin" "metricsAddress" (dig "metricsAddress" "" $v.devicePlugin.config) $v.devicePlugin.port)
  (list "agent" "metrics.listen" (dig "metrics" "listen" "" $v.agent.config) $v.agent.port) -}}
{{- $address := index . 2 | toString -}}
{{- if and $address (ne (regexFind "[0-9]+$" $address) (int (index . 3) | toString)) -}}
{{- fail (printf "%s.config.%s: %s has another port than %s.port, %d, which kubelet's probes use; accepted: the same port" (index . 0) (index . 1) $address (index . 0) (int (index . 3))) -}}
{{- end -}}
{{- end -}}
{{- end }}
