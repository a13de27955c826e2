<<<<<<< HEAD
import os
=======
import sys
#         ^ import indent=0
>>>>>>> other
def first(a):
    if a:
        return {
#               ^ statement indent=12 open={
    while a:
        a = a + 1
#              ^ operator indent=8
      print(a, 
#              ^ arguments open=(
class 
#     ^ signature
def 
#   ^ signature
for i in range(10)
    total += i
#             ^ identifier indent=4
    if i == 3: 
#              ^ block_start indent=8
    elif
#       ^ identifier
print "old style", total
#                       ^ identifier indent=0
data = [1, 2
#           ^ identifier indent=4 open=[
other = (3, 4
#          ^ statement indent=4 open=(
from . import (one, 
#                   ^ import open=(
x = y if
#       ^ identifier
z = x[1:
#       ^ statement open=[
))
# ^ closing
    self.
#        ^ identifier
text = """unclosed
def f(
#     ^ string
