//go:build tools

package actionlint

import _ "github.com/rhysd/actionlint/cmd/actionlint"
