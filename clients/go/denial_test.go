package bruce

import (
	"context"
	"io/fs"
	"net"
	"path/filepath"
	"testing"
)

func TestAClientThatGaveUpOpensNoConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.stream")
	daemon, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	client := &StreamClient{network: "unix", address: path}
	client.life, client.abort = context.WithCancel(context.Background())
	client.abort()
	if client.connect() || client.link != nil {
		t.Error("connected")
	}
}

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
