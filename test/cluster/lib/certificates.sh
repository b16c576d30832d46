# Certificates and kubeconfigs of one cluster, made for each start (elliptic curves: a quarter of a second, not four).

authority() {  # NAME
  openssl ecparam -genkey -name prime256v1 -noout -out "$1.key"
  openssl req -x509 -new -key "$1.key" -out "$1.crt" -days 30 -subj "/CN=sluice-cluster-$1" \
    -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}

certificate() {  # NAME AUTHORITY SUBJECT USAGE [ALTERNATIVE-NAMES]
  openssl ecparam -genkey -name prime256v1 -noout -out "$1.key"
  printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage=%s\n' "$4" >"$1.ext"
  [ -z "${5:-}" ] || printf 'subjectAltName=%s\n' "$5" >>"$1.ext"
  openssl req -new -key "$1.key" -subj "$3" |
    openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -out "$1.crt" -days 30 -extfile "$1.ext"
  rm "$1.ext"
}

kubeconfig() {  # NAME
  cat >"$1.kubeconfig" <<Y
apiVersion: v1
kind: Config
current-context: cluster
clusters: [{name: cluster, cluster: {server: "$API", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: cluster, context: {cluster: cluster, user: $1}}]
Y
}

make_certificates() (
  set -e
  umask 077
  mkdir -p $STATE/pki.new
  cd $STATE/pki.new
  local name
  {
    authority ca
    authority front-proxy-ca
    certificate apiserver ca /CN=kube-apiserver serverAuth \
      "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1"
    certificate apiserver-kubelet ca /O=system:masters/CN=apiserver-kubelet-client clientAuth
    certificate front-proxy front-proxy-ca /CN=front-proxy-client clientAuth
    certificate admin ca /O=system:masters/CN=admin clientAuth
    certificate controller-manager ca /CN=system:kube-controller-manager clientAuth
    certificate scheduler ca /CN=system:kube-scheduler clientAuth
    certificate proxy ca /CN=system:kube-proxy clientAuth
    certificate kubelet ca /O=system:nodes/CN=system:node:$NODE clientAuth
    certificate kubelet-serving ca /CN=$NODE serverAuth "DNS:$NODE,IP:$NODE_IP,IP:127.0.0.1"
    openssl ecparam -genkey -name prime256v1 -noout -out sa.key
    openssl ec -in sa.key -pubout -out sa.pub
  } 2>openssl.log || { tail -3 openssl.log >&2; exit 1; }
  for name in admin controller-manager scheduler kubelet proxy; do kubeconfig $name; done
  cd ..
  mv pki.new pki
)
