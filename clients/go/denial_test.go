package bruce

import (
	"io/fs"
	"testing"
)

func TestTheSecondDenialInARowFailsFlushes(t *testing.T) {
	client := &StreamClient{backoff: maxBackoff}
	for _, step := range []struct {
		err      error
		isDenied bool
	}{{fs.ErrPermission, false}, {fs.ErrNotExist, false}, {fs.ErrPermission, false}, {fs.ErrPermission, true}, {nil, false}} {
		client.noteDenial(step.err)
		if (client.denied != nil) != step.isDenied {
			t.Errorf("after %v: %v", step.err, client.denied)
		}
	}
	if client.backoff != firstBackoff {
		t.Error(client.backoff)
	}
}
