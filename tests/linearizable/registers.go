// Registers: each key of the table and of the metastore holds one value at a time.

package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"
)

type registerKind int

const (
	get registerKind = iota
	put
	swap
)

type registerOp struct {
	kind    registerKind
	value   string // what is written
	old     string // what a swap expects
	unknown bool
}

type registerResult struct {
	value string // of a get
	done  bool   // of a swap
}

// absent is the value of a key that is not there: no value of a history has this text.
const absent = "\x00"

var register = porcupine.Model{
	Init: func() any { return absent },
	Step: func(state, input, output any) (bool, any) {
		op, result := input.(registerOp), output.(registerResult)
		switch op.kind {
		case put:
			return true, op.value
		case get:
			return result.value == state, state
		default:
			fits := state == op.old
			after := state
			if fits {
				after = op.value
			}
			return op.unknown || result.done == fits, after
		}
	},
	DescribeOperation: func(input, output any) string {
		op, result := input.(registerOp), output.(registerResult)
		end := ""
		if op.unknown {
			end = ", unknown"
		}
		switch op.kind {
		case put:
			return fmt.Sprintf("write %s%s", shown(op.value), end)
		case get:
			return fmt.Sprintf("read %s", shown(result.value))
		default:
			return fmt.Sprintf("swap %s for %s: %v%s", shown(op.old), shown(op.value), result.done, end)
		}
	},
	DescribeState: func(state any) string { return shown(state.(string)) },
}

func shown(value string) string {
	if value == absent {
		return "nothing"
	}
	return value
}

// rowRegisters: write and read of keys that are changed again and again.
func rowRegisters(calls []*call) []*object {
	byKey := newObjects("registers", register)
	for _, c := range calls {
		if c.failed() {
			continue
		}
		var pair [2]*int64
		switch c.f {
		case "write":
			parse(c.asked, &pair)
			op := registerOp{kind: put, value: number(pair[1]), unknown: !c.ok()}
			byKey.add(number(pair[0]), c, op, registerResult{})
		case "read":
			if c.ok() {
				parse(c.value, &pair)
				byKey.add(number(pair[0]), c, registerOp{kind: get}, registerResult{value: number(pair[1])})
			}
		}
	}
	return withoutUnseen(byKey.all())
}

func number(value *int64) string {
	if value == nil {
		return absent
	}
	return strconv.FormatInt(*value, 10)
}

// metastoreRegisters: write, swap and read of keys of the metastore.
func metastoreRegisters(calls []*call) []*object {
	byKey := newObjects("metastore", register)
	for _, c := range calls {
		if c.failed() {
			continue
		}
		switch c.f {
		case "write":
			var asked [2]string
			parse(c.asked, &asked)
			op := registerOp{kind: put, value: asked[1], unknown: !c.ok()}
			byKey.add(asked[0], c, op, registerResult{})
		case "cas":
			var asked [2]json.RawMessage
			var key string
			var values [2]string
			parse(c.asked, &asked)
			parse(asked[0], &key)
			parse(asked[1], &values)
			op := registerOp{kind: swap, old: values[0], value: values[1], unknown: !c.ok()}
			var result struct {
				Done bool `json:"done"`
			}
			if c.ok() {
				parse(c.value, &result)
			}
			byKey.add(key, c, op, registerResult{done: result.Done})
		case "read":
			if c.ok() {
				var pair [2]*string
				parse(c.value, &pair)
				value := absent
				if pair[1] != nil {
					value = *pair[1]
				}
				byKey.add(*pair[0], c, registerOp{kind: get}, registerResult{value: value})
			}
		}
	}
	return withoutUnseen(byKey.all())
}

// withoutUnseen leaves out writes of unknown outcome whose value no operation asks for. If there is
// an order with such a write, there is one without it, so the answer is the same; but each of them
// doubles what the search may have to try. A swap that was not done may need the write that changed
// the value before it: where there is one, all stay.
func withoutUnseen(objects []*object) []*object {
	for _, one := range objects {
		asked, refused := map[string]bool{}, false
		for _, op := range one.operations {
			input, output := op.Input.(registerOp), op.Output.(registerResult)
			switch input.kind {
			case get:
				asked[output.value] = true
			case swap:
				asked[input.old] = true
				refused = refused || (!input.unknown && !output.done)
			}
		}
		if refused {
			continue
		}
		kept := one.operations[:0]
		for _, op := range one.operations {
			input := op.Input.(registerOp)
			if !input.unknown || input.kind == get || asked[input.value] {
				kept = append(kept, op)
			} else {
				one.without++
			}
		}
		one.operations = kept
	}
	return objects
}
