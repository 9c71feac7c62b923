// Reading a history: docs/formats/history.md says what is in it.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// never is when an operation of unknown outcome ends: it may take effect at any time, or never.
const never = math.MaxInt64

const version = 2

type event struct {
	Process  json.RawMessage `json:"process"`
	Type     string          `json:"type"`
	F        string          `json:"f"`
	Value    json.RawMessage `json:"value"`
	Time     int64           `json:"time"`
	Error    string          `json:"error"`
	Revision int64           `json:"revision"`
	Node     string          `json:"node"`
	Parts    [][3]int64      `json:"parts"`
}

// A call is a beginning and what came of it.
type call struct {
	process  int
	f        string
	asked    json.RawMessage
	value    json.RawMessage
	began    int64
	ended    int64 // never: its outcome is unknown
	outcome  string
	parts    [][3]int64
	revision int64
}

func (c *call) ok() bool { return c.outcome == "ok" }

// failed: it was surely not done.
func (c *call) failed() bool { return c.outcome == "fail" }

type header struct {
	Version    int `json:"version"`
	Partitions int `json:"partitions"`
}

// readHistory gives the calls of a file in the order in which they began.
func readHistory(path string) (header, []*call, error) {
	var head header
	file, err := os.Open(path)
	if err != nil {
		return head, nil, err
	}
	defer file.Close()
	var calls []*call
	underWay := map[int]*call{}
	over := map[int]bool{}
	last := int64(math.MinInt64)
	lines := bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the last line may be torn
			break
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return head, nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		bad := func(why string) (header, []*call, error) {
			return head, nil, fmt.Errorf("%s, line %d is no history: %s", path, number, why)
		}
		if e.Time < last {
			return bad("time goes back")
		}
		last = e.Time
		if bytes.Equal(e.Process, []byte(`"nemesis"`)) {
			if e.F == "history" {
				if err := json.Unmarshal(e.Value, &head); err != nil {
					return bad(err.Error())
				}
			}
			continue
		}
		var process int
		if err := json.Unmarshal(e.Process, &process); err != nil {
			return bad(err.Error())
		}
		if e.Type == "invoke" {
			if underWay[process] != nil {
				return bad(fmt.Sprintf("process %d does two things at once", process))
			}
			if over[process] {
				return bad(fmt.Sprintf("process %d goes on behind an unknown end", process))
			}
			one := &call{
				process: process, f: e.F, asked: e.Value, began: e.Time, ended: never, outcome: "info",
			}
			underWay[process] = one
			calls = append(calls, one)
			continue
		}
		one := underWay[process]
		if one == nil || one.f != e.F {
			return bad("an end without a beginning")
		}
		delete(underWay, process)
		one.outcome, one.value, one.parts, one.revision = e.Type, e.Value, e.Parts, e.Revision
		if e.Type == "info" {
			over[process] = true
		} else {
			one.ended = e.Time
		}
	}
	if head.Version != version {
		return head, nil, fmt.Errorf(
			"%s has version %d of the format, and version %d is checked: record it again",
			path, max(head.Version, 1), version)
	}
	return head, calls, nil
}

// parse reads what a call asked or got; a value of another form is no history.
func parse(raw json.RawMessage, into any) {
	if err := json.Unmarshal(raw, into); err != nil {
		panic(malformed{fmt.Sprintf("%s: %v", raw[:min(len(raw), 80)], err)})
	}
}

type malformed struct{ what string }

// unmarshalTuple reads a list whose places have types of their own.
func unmarshalTuple(raw []byte, into []any) error {
	var places []json.RawMessage
	if err := json.Unmarshal(raw, &places); err != nil {
		return err
	}
	if len(places) != len(into) {
		return fmt.Errorf("%d places, not %d", len(places), len(into))
	}
	for i, one := range places {
		if err := json.Unmarshal(one, into[i]); err != nil {
			return err
		}
	}
	return nil
}
